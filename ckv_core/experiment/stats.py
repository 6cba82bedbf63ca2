"""Every interval, test and rank correlation of the lab, one rule for each kind of value. No torch.

All intervals are 95 %, two-sided and for one look; none has zero width. Sums are exact, so that
equal numbers give equal ends in whatever order they come.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import NormalDist
from typing import Literal, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from ckv_core.errors import ConfigError

Values = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)  # of a prompt or source
MatchOutcome = Literal["found", "better", "worse", "nothing", "rounding", "unknown"]
CONFIDENCE = 0.95
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
# Means without bounds: Student's intervals of fewer values miss a skewed mean too often
# (benchmarks/coverage.py).
MIN_PROMPTS = 10
GOOD_PROMPTS = 20
_GRID = 100  # steps between the smallest and the largest budget


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval.

    Attributes:
        low, high: its ends; None of a mean without bounds that has too few or equal values.
        n: values, one per prompt or source.
    """

    mean: float
    low: float | None
    high: float | None
    n: int


def score_interval(scores: Sequence[float]) -> Interval:
    """Mean of scores or shares from 0 to 1 with Wilson's interval, from one score on.

    Scores that vary less than 0 and 1 of the same mean would count as more of those.
    """
    mean, variance = _moments(scores)
    n = _scaled_n(len(scores), variance, mean * (1 - mean))
    middle = mean + Z**2 / (2 * n)
    half = Z * sqrt(max(0.0, mean * (1 - mean) / n + Z**2 / (4 * n * n)))
    low, high = ((middle + end) / (1 + Z**2 / n) for end in (-half, half))
    return Interval(mean, max(0.0, min(mean, low)), min(1.0, max(mean, high)), len(scores))


def difference_interval(differences: Sequence[float]) -> Interval:
    """Mean of paired differences, or other values from -1 to 1, with Tango's interval.

    Values that vary less than -1, 0 and 1 of the same means count as more of those.
    """
    mean, variance = _moments(differences)
    count = len(differences)
    up, down = (fsum(max(0.0, sign * d) for d in differences) / count for sign in (1, -1))
    n = _scaled_n(count, variance, up + down - mean**2)

    def statistic(delta: float) -> float:
        b = -up - down + (2 - up + down) * delta
        nuisance = (sqrt(max(0.0, b * b + 8 * down * delta * (1 - delta))) - b) / 4
        return (mean - delta) / sqrt(max(2 * nuisance + delta * (1 - delta), 1e-300) / n)

    edge = 1 - 1e-12
    low, high = _root(statistic, Z, -edge, mean), _root(statistic, -Z, mean, edge)
    return Interval(mean, low, high, count)


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean of values without bounds (L1, KL, times) with Student's interval.

    Raises:
        ConfigError: no value.
    """
    mean, variance = _moments(values)
    n = len(values)
    if n < MIN_PROMPTS:
        return Interval(mean, None, None, n)
    half = float(scipy.special.stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * sqrt(variance / (n - 1))
    if min(values) == max(values) or not mean - half < mean < mean + half:
        return Interval(mean, None, None, n)
    return Interval(mean, mean - half, mean + half, n)


def interval_note(n: int, fewest: int | None = None) -> str | None:
    """Why means without bounds have no interval, or why not to lean on it; None where neither.

    `n` counts prompts, `fewest` those of the variant that was run on the fewest.
    """
    least = n if fewest is None else min(n, fewest)
    if n < MIN_PROMPTS:
        return (
            f"{n} prompt{'' if n == 1 else 's'}: an interval of L1, KL or times needs at least "
            f"{MIN_PROMPTS}, so these have a mean alone; shares and scores have intervals."
        )
    if least < MIN_PROMPTS:
        return (
            f"An interval of L1, KL or times needs at least {MIN_PROMPTS} prompts; where n is less "
            "there is only a mean."
        )
    if least < GOOD_PROMPTS:
        return (
            f"Of fewer than {GOOD_PROMPTS} prompts, intervals of L1, KL and times may be too "
            f"narrow. In simulations at n = {MIN_PROMPTS} 83 to 96 % of them hold the mean."
        )
    return None


@dataclass(frozen=True, slots=True)
class Difference:
    """One minus the other of the same prompts or sources.

    Attributes:
        lower, higher: those where the one is below or above the other by more than rounding does.
        level: those where they differ by no more than a rounding floor of their runs.
        p: of the exact McNemar test, two-sided, of yes-or-no values; None of any other.
        holm_p: the same, adjusted over all pairs beside this one.
    """

    mean: Interval
    lower: int
    higher: int
    level: int
    p: float | None
    holm_p: float | None = None

    @property
    def level_note(self) -> str:
        """Words behind the difference; empty where rounding parts no two of its values."""
        if not self.level:
            return ""
        count = "" if self.level == self.mean.n else f" on {self.level}"
        return f", below the rounding floor{count}"


def paired(
    own: Mapping[Key, float],
    other: Mapping[Key, float],
    *,
    is_share: bool,
    is_yes_no: bool = False,
    floors: Sequence[Mapping[Key, float]] = (),
) -> Difference | None:
    """Own minus other where both are known, by prompt or source; None where nowhere.

    `is_share`: all values are from 0 to 1. `floors`: what rounding alone moves, of either side.
    """
    differences = {at: own[at] - other[at] for at in own if at in other}
    if not differences:
        return None
    level = {
        at
        for at, each in differences.items()
        if abs(each) <= max((floor.get(at, -1.0) for floor in floors), default=-1.0)
    }
    lower = sum(each < 0 for at, each in differences.items() if at not in level)
    higher = sum(each > 0 for at, each in differences.items() if at not in level)
    mean = (difference_interval if is_share else mean_interval)([*differences.values()])
    p = mcnemar(lower, higher) if is_yes_no else None
    return Difference(mean, lower, higher, len(level), p)


def mcnemar(lower: int, higher: int) -> float:
    """Two-sided p of the exact test that a change to no (`lower`) is as likely as one to yes.

    With the sums of independent sets, such as tasks, it is their stratified exact test: given the
    changes of each set, their sum is binomial with 1/2 however they are spread.
    """
    changed = lower + higher
    return float(scipy.stats.binomtest(lower, changed).pvalue) if changed else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p of a family, in the order given."""
    order = np.argsort(p_values)
    raised = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(raised.clip(max=1.0))
    found: list[float] = adjusted.tolist()
    return found


def rank_correlation(left: Values, right: Values) -> float:
    """Spearman's of two rows that both vary; ties share their mean rank."""
    ranks = scipy.stats.rankdata(np.stack([left, right]), axis=1)
    return float(np.corrcoef(ranks)[0, 1])


@dataclass(frozen=True, slots=True)
class Match:
    """The budget at which a curve is as good as a target.

    Attributes:
        budget: None where the curve does not cross the target inside its own range.
        outcome: `better` where even the smallest budget is at least as good (of a curve that
            stays as good as the target, a smaller one may do too), `worse` where the largest is
            not, `nothing` where the target is a share of 0, which any budget matches, `rounding`
            where it is within the run's rounding floor, so that no value is known to match it.
    """

    budget: float | None
    outcome: MatchOutcome


def matching_budget(
    points: Sequence[tuple[float, float]], target: float, *, lower: bool = True
) -> Match:
    """The budget from which on every measured point is at least as good as the target.

    Between two points the value is linear in the budget. Higher values are better only of shares,
    and of those a target of 0 asks for nothing.

    `points`: (budget, value) by rising budget.
    """
    if not points:
        return Match(None, "unknown")
    if target == 0 and not lower:
        return Match(None, "nothing")
    sign = 1 if lower else -1
    over = [sign * (value - target) for _, value in points]
    missing = [at for at, value in enumerate(over) if value > 0]
    if not missing:
        exact = over[0] == 0 and (len(over) == 1 or over[1] < 0)
        return Match(float(points[0][0]), "found") if exact else Match(None, "better")
    last = missing[-1]
    if last == len(points) - 1:
        return Match(None, "worse")
    share = over[last] / (over[last] - over[last + 1])
    low, high = points[last][0], points[last + 1][0]
    return Match(low + share * (high - low), "found")


def matching_range(
    budgets: Sequence[float], scores: Values, target: Values, needed: Match
) -> tuple[Match, Match]:
    """Ends of the 95 % interval of a matching budget: where the paired difference may be 0.

    Args:
        budgets: rising.
        scores: [budgets, sources], 0 to 1, linear between budgets.
        target: [sources].
        needed: the matching budget of the means.

    Returns:
        The budgets around those whose `difference_interval` from the target holds 0, to a
        hundredth of the range; `better` and `worse` where an end is outside the budgets.
    """
    even = np.linspace(budgets[0], budgets[-1], _GRID + 1)
    grid = np.unique([*even, needed.budget or budgets[0]])
    at = np.interp(grid, budgets, np.arange(len(budgets)))
    above = at.astype(int).clip(max=len(budgets) - 2)  # -1 of a single one: that one itself
    share = (at - above)[:, None]
    between = (1 - share) * scores[above] + share * scores[np.minimum(above + 1, len(budgets) - 1)]
    equal = np.flatnonzero(_may_be_zero(between - target))
    if not equal.size:
        return needed, needed
    first, last = int(equal[0]), int(equal[-1])
    low = Match(float(grid[first - 1]), "found") if first else Match(None, "better")
    if last == len(grid) - 1:
        return low, Match(None, "worse")
    return low, Match(float(grid[last + 1]), "found")


def _may_be_zero(differences: Values) -> NDArray[np.bool_]:
    """Of [rows, n] differences whether `difference_interval` holds 0, where it has a short form."""
    n, mean = differences.shape[1], differences.mean(1)
    changed, variance = abs(differences).mean(1), differences.var(1)
    widest = changed - mean**2
    scaled = n * widest * (n + Z**2) / np.maximum(n * variance + Z**2 * widest, 1e-300)
    held: NDArray[np.bool_] = mean**2 * np.where(widest > 0, scaled, n) <= Z**2 * changed
    return held


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and variance.

    Raises:
        ConfigError: no value.
    """
    if not len(values):
        raise ConfigError("There is nothing to average; run at least one prompt.")
    mean = fsum(values) / len(values)
    return mean, fsum((each - mean) ** 2 for each in values) / len(values)


def _scaled_n(n: int, variance: float, widest: float) -> float:
    """Return n, or more where values vary less than the widest of the same mean do."""
    return n if widest <= 0 else n * widest * (n + Z**2) / (n * variance + Z**2 * widest)


def _root(statistic: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Where a falling statistic has a value; the outer end of what it can be where nowhere."""
    outer = -1.0 if value > 0 else 1.0
    if low >= high or (statistic(low) - value) * (statistic(high) - value) >= 0:
        return outer
    return float(scipy.optimize.brentq(lambda x: statistic(x) - value, low, high))
