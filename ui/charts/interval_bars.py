"""Means over prompts as charts show them: the interval's bars, and how many prompts there are."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ckv_core.experiment.stats import MIN_PROMPTS, Interval

SHARE_TICKS = ".3~%"  # as many digits as it takes to tell neighbours apart


def interval_bars(intervals: Sequence[Interval], color: str) -> dict[str, Any] | None:
    """Plotly's error bars; none at a mean without an interval, None where no mean has one."""
    ends = np.array(
        [(i.mean, i.low, i.high) if _has_bar(i) else (np.nan,) * 3 for i in intervals], np.float64
    )
    if np.isnan(ends).all():
        return None
    mean, low, high = ends.T
    return {
        "type": "data",
        "symmetric": False,
        "array": high - mean,
        "arrayminus": mean - low,
        "color": color,
        "thickness": 2,
    }


def interval_subtitle(intervals: Sequence[Interval]) -> str:
    """What the points and bars are, and n; of figures that only some prompts have, n's range."""
    counts = sorted({each.n for each in intervals})
    n = n_prompts(counts[0], counts[-1])
    bars = [_has_bar(each) for each in intervals]
    if all(bars):
        return f"mean and 95 % interval, {n}"
    if any(bars):
        return f"mean; 95 % interval where n is at least {MIN_PROMPTS}; {n}"
    return f"mean; no interval of so few or equal values, {n}"


def n_prompts(fewest: int, most: int = 0) -> str:
    """`n = 4 to 6 prompts`."""
    if most > fewest:
        return f"n = {fewest} to {most} prompts"
    return f"n = {fewest} prompt{'' if fewest == 1 else 's'}"


def _has_bar(interval: Interval) -> bool:
    return interval.low is not None and interval.high is not None
