"""Means over prompts with their intervals: bootstrap of means, exact ones of shares. No torch.

One prompt is one sample: heads and layers of a prompt are not independent and are averaged first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from ckv_core.errors import ConfigError
from ckv_core.results.figures import FIGURES

CONFIDENCE = 0.95
_RESAMPLES = 4999
_SEED = 20250204
_MOST_VALUES = 2**23  # in memory at once
Values = NDArray[np.float64]
# In simulations (benchmarks/coverage.py) BCa intervals of fewer values miss the mean too often.
MIN_PROMPTS = 10
GOOD_PROMPTS = 20
# Of a prompt; their share has an exact interval of any n.
YES_NO = {key for key, figure in FIGURES.items() if figure.is_binary}
# Figures of a prompt that are shares; where every prompt says 0 or 1 their interval is exact.
SHARES = {key for key, figure in FIGURES.items() if figure.is_share}


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over prompts.

    Attributes:
        low, high: 95 % interval, by bootstrap or exact; None of too few prompts.
        n: prompts.
    """

    mean: float
    low: float | None
    high: float | None
    n: int


class Intervals(Mapping[str, Interval]):
    """Intervals by key, each drawn when it is first read: resampling all of them takes seconds."""

    def __init__(self, values: Mapping[str, Sequence[float]]) -> None:
        """Take one value per prompt of each key; none may be empty."""
        self._values = values
        self._drawn: dict[str, Interval] = {}

    def __getitem__(self, key: str) -> Interval:
        if key not in self._drawn:
            values = self._values[key]
            if key in YES_NO:
                self._drawn[key] = share_interval(values, fewest=1)
            else:
                self._drawn[key] = (share_interval if key in SHARES else mean_interval)(values)
        return self._drawn[key]

    def __contains__(self, key: object) -> bool:
        """Whether any prompt has a value; draws nothing."""
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def prompts(self, key: str) -> int:
        """How many prompts have a value; draws nothing."""
        return len(self._values[key])


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval: bias-corrected and accelerated bootstrap with a fixed seed.

    Raises:
        ConfigError: no value.
    """
    sample = np.asarray(values, np.float64)
    if not sample.size:
        raise ConfigError("There is nothing to average; run at least one prompt.")
    mean, n = float(sample.mean()), len(sample)
    if n < MIN_PROMPTS:
        return Interval(mean, None, None, n)
    low, high = mean_ends(sample[None])
    return Interval(mean, float(low[0]), float(high[0]), n)


def share_interval(values: Sequence[float], *, fewest: int = MIN_PROMPTS) -> Interval:
    """As `mean_interval`, of shares; exact (Clopper and Pearson) where all of them are 0 or 1."""
    sample = np.asarray(values, np.float64)
    n = len(sample)
    if n < fewest or not n or not np.isin(sample, (0.0, 1.0)).all():
        return mean_interval(values)
    return Interval(float(sample.mean()), *share_ends(int(sample.sum()), n), n)


def interval_note(n: int, fewest: int | None = None) -> str | None:
    """Why there is no interval of means, or why not to lean on it; None where there is one.

    `n` counts prompts, `fewest` those of the variant that was run on the fewest.
    """
    least = n if fewest is None else min(n, fewest)
    if n < MIN_PROMPTS:
        return (
            f"{n} prompt{'' if n == 1 else 's'}: an interval of a mean needs at least "
            f"{MIN_PROMPTS}, so only means are shown; yes-or-no shares have exact intervals."
        )
    if least < MIN_PROMPTS:
        return (
            f"An interval of a mean needs at least {MIN_PROMPTS} prompts; where n is less there "
            "is only a mean."
        )
    if least < GOOD_PROMPTS:
        return (
            f"Bootstrap intervals of fewer than {GOOD_PROMPTS} prompts are too narrow: in "
            f"simulations at n = {MIN_PROMPTS} 83 to 92 % of them hold the mean, not 95 %."
        )
    return None


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
        resampled = scipy.stats.bootstrap(
            (samples[varied],),
            np.mean,
            axis=-1,
            n_resamples=_RESAMPLES,
            batch=max(1, min(_RESAMPLES, _MOST_VALUES // samples.size)),
            confidence_level=CONFIDENCE,
            method="BCa",
            rng=np.random.default_rng(_SEED),
        ).confidence_interval
        low[varied], high[varied] = resampled.low, resampled.high
    return low, high


def share_ends(count: int, n: int) -> tuple[float, float]:
    """Ends of Clopper and Pearson's exact interval of a share: `count` of `n` said yes."""
    ends = scipy.stats.binomtest(count, n).proportion_ci(CONFIDENCE, method="exact")
    return float(ends.low), float(ends.high)
