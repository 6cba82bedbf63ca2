"""Every registered method; every selector after a '+' on the first whose head budgets differ."""

from ckv_core.methods import METHODS

_UNEQUAL = [m for m in METHODS if m.budget_rule is not None and m.budget_rule.compares_heads]
_FOLLOWED = {part.name: m.name for m in reversed(_UNEQUAL) for part in m.selectors[1:]}
SPECS = (
    *(method.name for method in METHODS),
    *(f"{method}+{selector}" for selector, method in _FOLLOWED.items()),
)
