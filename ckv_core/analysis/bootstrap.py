"""Intervals: bootstrap of means, one row or many at once, and exact ones of shares. No torch."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, bootstrap

CONFIDENCE = 0.95
_RESAMPLES = 4999
_SEED = 20250204
_MOST_VALUES = 2**23  # in memory at once

Values = NDArray[np.float64]


def mean_ends(samples: Values) -> tuple[Values, Values]:
    """Ends of the intervals: bias-corrected and accelerated bootstrap with a fixed seed.

    Args:
        samples: [rows, n]; each row is resampled alike, so its ends are about those that it has
            alone: resamples whose mean is the row's own fall to either side by rounding.

    Returns:
        low and high, each [rows]; the mean itself where all values of a row are equal.
    """
    low, high = samples.mean(axis=-1), samples.mean(axis=-1)
    varied = np.ptp(samples, axis=-1) > 0  # of others there is nothing to resample
    if varied.any():
        found = bootstrap(
            (samples[varied],),
            np.mean,
            axis=-1,
            n_resamples=_RESAMPLES,
            batch=max(1, min(_RESAMPLES, _MOST_VALUES // samples.size)),
            confidence_level=CONFIDENCE,
            method="BCa",
            rng=np.random.default_rng(_SEED),
        ).confidence_interval
        low[varied], high[varied] = found.low, found.high
    return low, high


def share_ends(count: int, n: int) -> tuple[float, float]:
    """Ends of Clopper and Pearson's exact interval of a share: `count` of `n` said yes."""
    found = binomtest(count, n).proportion_ci(CONFIDENCE, method="exact")
    return float(found.low), float(found.high)
