"""Means over what is known of an array; NaN stands for what is not. No torch."""

import numpy as np

from ckv_core.results.records import Float32Array


def mean_of_known(values: Float32Array | None) -> float | None:
    """Mean of all values that are not NaN; None if there is none.

    An imported file may hold both infinities, whose mean is NaN.
    """
    if values is None:
        return None
    known = values[~np.isnan(values)]
    with np.errstate(invalid="ignore"):
        return float(known.mean(dtype=np.float64)) if known.size else None
