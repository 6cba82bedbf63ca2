"""Budget saved at an equal score, as in the paper's Figure 1, with its interval. No torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ckv_core.experiment.stats import Match, Values, matching_budget, matching_range
from ckv_core.methods.parameters import Budget
from ckv_core.studies.reading import Reading, Scores
from ckv_core.studies.records import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSaved:
    """What a variant with CriticalKV needs for the score of the one without at a budget.

    Attributes:
        target: the variant without, at its budget.
        score: of the target, 0 to 1, over the sources that both have at every budget.
        n: those sources.
        budgets: those at which the variant has scores, rising.
        needed: amount of budget, in the study's unit, by linear interpolation.
        low, high: ends of its 95 % interval; None where the score to be reached is 0.
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
    for at, target in enumerate(others, start=len(own)):
        low = high = None
        needed = _match(amounts, whole[: len(own)], whole[at])
        if needed.outcome != "nothing":
            low, high = matching_range(amounts, values[: len(own)], values[at], needed)
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


def _match(amounts: Sequence[float], means: Values, target: float) -> Match:
    # Sums of the same scores in another order are to be equal.
    points = [(at, round(float(mean), 12)) for at, mean in zip(amounts, means, strict=True)]
    return matching_budget(points, round(float(target), 12), lower=False)
