"""Intervals of scores from 0 to 1 and of their differences, with few samples too. No torch.

One source is one sample: samples of the same text are averaged first, for they are not independent.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np
import scipy

from ckv_core.analysis.intervals import CONFIDENCE, MIN_PROMPTS, mean_ends

Z_TWO_SIDED = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
Z_ONE_SIDED = NormalDist().inv_cdf(CONFIDENCE)


def score_ends(scores: Sequence[float]) -> tuple[float, float]:
    """Ends of the 95 % interval of a mean of scores, at least one and each 0 to 1.

    Wilson's (1927) where every score is 0 or 1, and where there are too few for a bootstrap: no
    scores from 0 to 1 vary more than those of the same mean that are all 0 or 1. Else the
    bias-corrected and accelerated bootstrap.
    """
    values = np.asarray(scores, np.float64)
    is_binary = np.isin(values, (0.0, 1.0)).all()
    if len(values) >= MIN_PROMPTS and not is_binary and np.ptp(values) > 0:
        low, high = mean_ends(values[None])
        return float(low[0]), float(high[0])
    return wilson_ends(float(values.mean()), len(values))


def wilson_ends(share: float, n: int, z: float = Z_TWO_SIDED) -> tuple[float, float]:
    """Wilson's interval of a share of n."""
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def difference_ends(differences: Sequence[float], z: float = Z_TWO_SIDED) -> tuple[float, float]:
    """Ends of the interval of a mean paired difference.

    Tango's (1998) score interval where every difference is -1, 0 or 1. Else the bootstrap, but
    never narrower than Tango's of as many samples without any change: that no sample changed says
    little where there are few.

    Args:
        differences: at least one, each -1 to 1.
        z: 1.645 for an end that holds with 95 % alone, 1.960 for both together.
    """
    values = np.asarray(differences, np.float64)
    n = len(values)
    gained, lost = int((values == 1).sum()), int((values == -1).sum())
    if gained + lost + int((values == 0).sum()) == n:
        return tango_ends(gained, lost, n, z)
    mean = float(values.mean())
    least = z * z / (n + z * z)
    if n < MIN_PROMPTS:
        # As if each difference were the average of changes by 1: the widest with these means.
        up, down = float(values.clip(0).sum()), float((-values).clip(0).sum())
        low, high = tango_ends(up, down, n, z)
    else:
        # The bootstrap is two-sided at 95 %; another z scales its halves.
        ends = mean_ends(values[None])
        scale = z / Z_TWO_SIDED
        low = mean - (mean - float(ends[0][0])) * scale
        high = mean + (float(ends[1][0]) - mean) * scale
    return max(-1.0, min(low, mean - least)), min(1.0, max(high, mean + least))


def tango_ends(gained: float, lost: float, n: int, z: float = Z_TWO_SIDED) -> tuple[float, float]:
    """Tango's score interval of a difference of two paired shares, of n samples."""
    difference = (gained - lost) / n

    def statistic(delta: float) -> float:
        a = 2 * n
        b = -gained - lost + (2 * n - gained + lost) * delta
        c = -lost * delta * (1 - delta)
        nuisance = (sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
        variance = n * (2 * nuisance + delta * (1 - delta))
        return (gained - lost - n * delta) / sqrt(max(variance, 1e-300))

    edge = 1 - 1e-12
    low = -1.0 if difference <= -edge else _root(statistic, z, -edge, difference)
    high = 1.0 if difference >= edge else _root(statistic, -z, difference, edge)
    return low, high


def needed_without_loss(tolerance: float, z: float = Z_ONE_SIDED) -> int:
    """Fewest samples, none of them changed, that rule a loss over `tolerance` out."""
    return int(np.ceil(z * z * (1 - tolerance) / tolerance)) if tolerance > 0 else 0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p of a family, in the order given."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, p_values[at] * (len(p_values) - rank)))
        adjusted[at] = highest
    return adjusted


def _root(statistic: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Where a falling statistic has a value."""

    def distance(delta: float) -> float:
        return statistic(delta) - value

    if distance(low) < 0:
        return low
    if distance(high) > 0:
        return high
    return float(scipy.optimize.brentq(distance, low, high, xtol=1e-10))
