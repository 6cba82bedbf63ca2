"""The answer of a study: which method keeps the full cache's score, at which smallest budget.

The budget is chosen on one half of the samples and confirmed on the other, so that choosing the
best of several cannot make it look better than it is. No torch.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ckv_core.methods.parameters import Budget
from ckv_core.studies.intervals import Z_ONE_SIDED, difference_ends, needed_without_loss
from ckv_core.studies.methods_text import joined
from ckv_core.studies.reading import (
    FULL_POINT,
    Row,
    Scores,
    differences,
    full_row,
    scores_of,
    source,
)
from ckv_core.studies.records import Point, Sample, SampleResult, Study

# kept: the other half confirms it with 95 % confidence; undecided: it does not contradict; lost:
# it shows a larger loss; none: no budget stayed within the tolerance on the first half.
Outcome = Literal["kept", "undecided", "lost", "none"]
NOTHING_TO_LOSE = "the full cache itself answers nothing here, so eviction has nothing to lose."
LEAST_FULL = 0.6  # a task that the full cache cannot do tells little about eviction


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodDecision:
    """One variant.

    Attributes:
        budget: the smallest whose mean loss on the first half is within the tolerance; None
            where none is.
        chosen_n, confirmed_n: sources of the two halves.
        chosen_difference, confirmed_difference: score minus the full cache's, 0 to 1, on each.
        low: what the difference is above with 95 % confidence, on the second half.
        high: what it is below with 95 % confidence.
    """

    variant: str
    outcome: Outcome
    budget: str | None
    chosen_n: int
    confirmed_n: int = 0
    chosen_difference: float | None
    confirmed_difference: float | None = None
    low: float | None = None
    high: float | None = None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer.

    Attributes:
        sentence: the answer in one sentence.
        tolerance: 0 to 1.
        full: the full cache over all samples; None before any result.
        methods: those that keep the score first, by rising budget.
        cautions: what a reader has to know beside it.
    """

    sentence: str
    tolerance: float
    full: Row | None
    methods: tuple[MethodDecision, ...]
    cautions: tuple[str, ...]

    @property
    def recommended(self) -> MethodDecision | None:
        """The method with the smallest confirmed budget."""
        first = self.methods[0] if self.methods else None
        return first if first is not None and first.outcome == "kept" else None


def decide(study: Study, samples: Sequence[Sample], results: Collection[SampleResult]) -> Decision:
    """Decide with the results that are there, all or some."""
    tolerance = study.tolerance / 100
    first, second = halves(samples)
    chosen = scores_of(study, first, results)
    confirmed = scores_of(study, second, results)
    methods = [
        _method(variant, points, chosen, confirmed, tolerance)
        for variant, points in _by_variant(study).items()
    ]
    full = full_row(study, samples, results)
    if full.score == 0:  # whatever is evicted, nothing is lost
        methods = [
            replace(each, outcome="undecided", sentence=f"{each.variant}: {NOTHING_TO_LOSE}")
            for each in methods
        ]
    rank: dict[Outcome, int] = {"kept": 0, "undecided": 1, "lost": 2, "none": 3}
    methods.sort(key=lambda each: (rank[each.outcome], _amount(each.budget)))
    failed = sum(result.state == "failed" for result in results)
    missing = len(samples) * len(study.points()) - len(results)
    return Decision(
        sentence=_sentence(methods, full, study.tolerance),
        tolerance=tolerance,
        full=full if full.n else None,
        methods=tuple(methods),
        cautions=tuple(_cautions(full, tolerance, failed, missing)),
    )


def halves(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Two halves that do not depend on the order; samples of one source stay together."""

    def mark(name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()

    sources = sorted({source(sample) for sample in samples}, key=mark)
    in_first = set(sources[::2])
    first = [sample for sample in samples if source(sample) in in_first]
    return first, [sample for sample in samples if source(sample) not in in_first]


def _by_variant(study: Study) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in study.points():
        if point != FULL_POINT:
            found.setdefault(point.variant, []).append(point)
    return found


def _method(
    variant: str,
    points: Sequence[Point],
    chosen: Mapping[Point, Scores],
    confirmed: Mapping[Point, Scores],
    tolerance: float,
) -> MethodDecision:
    """Of one variant, whose points come by rising budget."""
    for point in points:
        on_first = differences(chosen[point], chosen[FULL_POINT])
        if not on_first or sum(on_first) / len(on_first) < -tolerance - 1e-9:
            continue
        on_second = differences(confirmed[point], confirmed[FULL_POINT])
        if not on_second:
            break
        return _confirmed(point, on_first, on_second, tolerance)
    known = [d for point in points if (d := differences(chosen[point], chosen[FULL_POINT]))]
    best = max((sum(each) / len(each) for each in known), default=None)
    said = f"the least loss was {_points(best)}" if best is not None else "there is no result yet"
    return MethodDecision(
        variant=variant,
        outcome="none",
        budget=None,
        chosen_n=max((len(each) for each in known), default=0),
        chosen_difference=best,
        sentence=f"{variant}: no budget tried stays within the tolerance; {said}.",
    )


def _confirmed(
    point: Point, on_first: Sequence[float], on_second: Sequence[float], tolerance: float
) -> MethodDecision:
    """Of the point that one half chose, as the differences of the other half say."""
    low, high = difference_ends(on_second, Z_ONE_SIDED)
    outcome: Outcome = "undecided"
    if low >= -tolerance - 1e-9:
        outcome = "kept"
    elif high < -tolerance:
        outcome = "lost"
    mean = sum(on_second) / len(on_second)
    return MethodDecision(
        variant=point.variant,
        outcome=outcome,
        budget=point.budget,
        chosen_n=len(on_first),
        confirmed_n=len(on_second),
        chosen_difference=sum(on_first) / len(on_first),
        confirmed_difference=mean,
        low=low,
        high=high,
        sentence=_of_method(outcome, point, mean, low, tolerance),
    )


def _of_method(outcome: Outcome, point: Point, mean: float, low: float, tolerance: float) -> str:
    at = f"{point.variant} at {point.budget}"
    lost = "nothing" if mean == 0 else f"{_points(mean)}"
    within = f"{100 * tolerance:g} points"
    if outcome == "kept":
        return f"{at}: within {within} of the full cache, confirmed with 95 % confidence."
    if outcome == "lost":
        return f"{at}: chosen on one half, but the other half shows a loss over {within}."
    return (
        f"{at}: lost {lost} on the second half, which rules out only losses over "
        f"{_points(low)}; undecided."
    )


def _sentence(methods: Sequence[MethodDecision], full: Row, tolerance: float) -> str:
    if not full.n:
        return "There is no result yet."
    if not full.score:
        return f"Undecided: {NOTHING_TO_LOSE}"
    within = f"within {tolerance:g} points of the full cache's {100 * (full.score or 0):.0f}"
    kept = [each for each in methods if each.outcome == "kept"]
    if kept:
        more = [f"{each.variant} at {each.budget}" for each in kept[1:]]
        verb = "do" if len(more) > 1 else "does"
        then = f"; so {verb} {joined(more)}" if more else ""
        return (
            f"{kept[0].variant} at {kept[0].budget} keeps the score {within}, with 95 % "
            f"confidence on the half of the samples that confirmed it{then}."
        )
    open_ones = [each for each in methods if each.outcome == "undecided"]
    if open_ones:
        first = open_ones[0]
        return (
            f"Undecided: the smallest budget that looks {within} is {first.variant} at "
            f"{first.budget}, but {first.confirmed_n} samples to confirm it rule out only losses "
            f"over {_points(first.low)}."
        )
    return f"No method at the budgets tried keeps the score {within}."


def _cautions(full: Row, tolerance: float, failed: int, missing: int) -> list[str]:
    found = []
    needed = 2 * needed_without_loss(tolerance)
    if needed and full.n < needed:
        found.append(
            f"{full.n} samples: with fewer than {needed} no loss below {100 * tolerance:g} points "
            "can be ruled out with 95 % confidence, even where nothing is lost; take more samples "
            "or a wider tolerance."
        )
    if not tolerance:
        found.append("With a tolerance of 0 points nothing can be confirmed; allow some loss.")
    if full.n and (full.score or 0) < LEAST_FULL:
        found.append(
            f"The full cache itself scores {100 * (full.score or 0):.0f} of 100, below "
            f"{100 * LEAST_FULL:.0f}: what it cannot answer says little about eviction."
        )
    if failed:
        found.append(f"{failed} results failed and are left out; run the study again for them.")
    if missing > 0:
        found.append(f"{missing} results are not there yet; run the study on.")
    return found


def _points(value: float | None) -> str:
    """A difference or loss in points, without its sign."""
    amount = abs(100 * (value or 0))
    return f"{amount:.1f} point{'' if f'{amount:.1f}' == '1.0' else 's'}"


def _amount(budget: str | None) -> float:
    return Budget.parse(budget).amount if budget is not None else float("inf")
