"""Budget saved at an equal score, as in the paper's Figure 1, with its interval. No torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ckv_core.analysis.intervals import MIN_PROMPTS, Values
from ckv_core.analysis.sweep_savings import Match, matching_budget
from ckv_core.methods.parameters import Budget
from ckv_core.studies.reading import Reading, Scores
from ckv_core.studies.records import Point

_RESAMPLES = 999
_SEED = 20250204


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSaved:
    """What a variant with CriticalKV needs for the score of the one without at a budget.

    Attributes:
        target: the variant without, at its budget.
        score: of the target, 0 to 1, over the sources that both have at every budget.
        n: those sources.
        budgets: those at which the variant has scores, rising.
        needed: amount of budget, in the study's unit, by linear interpolation.
        low, high: ends of its 95 % interval, by bootstrap of the sources; None of too few sources
            and where the score to be reached is 0.
    """

    variant: str
    target: Point
    score: float
    n: int
    budgets: tuple[str, ...]
    needed: Match
    low: Match | None
    high: Match | None


def budgets_saved(reading: Reading) -> list[BudgetSaved]:
    """For every variant with a base, what it needs for the score of each budget of the base."""
    return [saved for pair in reading.bases.items() for saved in _of_pair(reading.scores, *pair)]


def _of_pair(scores: Mapping[Point, Scores], variant: str, base: str) -> Iterator[BudgetSaved]:
    # Not a budget at which every sample failed: it may hold less than what is always kept.
    own, others = (
        [point for point in scores if point.variant == name and scores[point]]
        for name in (variant, base)
    )
    sources = sorted(set.intersection(*(set(scores[point]) for point in (*own, *others))))
    if not sources:
        return
    n = len(sources)
    values = np.array([[scores[point][at] for at in sources] for point in (*own, *others)])
    budgets = tuple(point.budget or "" for point in own)
    amounts = [Budget.parse(budget).amount for budget in budgets]
    whole = values.mean(1)
    drawn = _resampled(values) if n >= MIN_PROMPTS else None
    for at, target in enumerate(others, start=len(own)):
        low = high = None
        needed = _match(amounts, whole[: len(own)], whole[at])
        if drawn is not None and needed.outcome != "nothing":
            found = [_match(amounts, means[: len(own)], means[at]) for means in drawn]
            low, high = _ends(found)
        yield BudgetSaved(
            variant=variant,
            target=target,
            score=float(whole[at]),
            n=n,
            budgets=budgets,
            needed=needed,
            low=low,
            high=high,
        )


def _resampled(values: Values) -> Values:
    """[resamples, points] means over sources drawn with replacement, the same for all points."""
    n = values.shape[1]
    drawn = np.random.default_rng(_SEED).multinomial(n, np.full(n, 1 / n), _RESAMPLES)
    means: Values = drawn @ values.T / n
    return means


def _match(amounts: Sequence[float], means: Values, target: float) -> Match:
    # Sums of the same scores in another order are to be equal.
    points = [(at, round(float(mean), 12)) for at, mean in zip(amounts, means, strict=True)]
    return matching_budget(points, round(float(target), 12), lower=False, in_logarithm=False)


def _ends(found: Sequence[Match]) -> list[Match]:
    """The 2.5th and the 97.5th percentile; what lies outside the budgets tried has a place too."""

    def place(match: Match) -> float:
        if match.budget is not None:
            return match.budget
        return np.inf if match.outcome == "worse" else -np.inf

    # A score of 0 drawn for the target is reached at any budget.
    reached = (Match(None, "better") if m.outcome == "nothing" else m for m in found)
    ordered = sorted(reached, key=place)
    return [ordered[round(share * (len(ordered) - 1))] for share in (0.025, 0.975)]
