"""The intervals of means as Plotly's error bars."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ckv_core.experiment.stats import Interval


def interval_bars(intervals: Sequence[Interval], color: str) -> dict[str, Any] | None:
    """Plotly's error bars; none at a mean without an interval, None where no mean has one."""
    ends = np.array(
        [(i.mean, i.low, i.high) if has_bar(i) else (np.nan,) * 3 for i in intervals], np.float64
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


def has_bar(interval: Interval) -> bool:
    return interval.low is not None and interval.high is not None
