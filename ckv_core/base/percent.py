"""A share as readers see it, in percent: one rounding for pages, charts, reports and terminals."""


def percent(share: float, decimals: int = 0, sign: str = "") -> str:
    """`20 %` of a share of 0.2, to the nearest `decimals`; never -0.

    Without decimals it still has one where a whole number would be 0 or 100 of what is neither.
    `sign` is `+` where a positive share has one.
    """
    value = 100 * share
    is_near = 0 < abs(value) < 1 or 99 < abs(value) < 100
    return f"{value:{sign}z.{decimals or int(is_near)}f} %"
