"""The answer of a study: which method keeps the baseline's score, at which smallest budget.

The baseline is the full cache unless the study names another point.

`ckv_core/experiment/decide.py` decides and `sentences.py` says it; here are the study's samples
and results as they take them. No torch.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Literal, cast

import numpy as np

from ckv_core.experiment import sentences
from ckv_core.experiment.decide import (
    FEWEST_SOURCES,
    Choice,
    PointDecision,
    counted,
    decide,
)
from ckv_core.experiment.names import display_names
from ckv_core.experiment.points import Row, baseline_name
from ckv_core.experiment.runs import read_results, source
from ckv_core.experiment.stats import Interval
from ckv_core.experiment.study import Key, Sample, SampleResult
from ckv_core.methods.parameters import Budget
from ckv_core.records.outcomes import raise_sentence
from ckv_core.records.run_request import FULL, RunRequest

Outcome = Literal["keeps", "undecided", "loses", "unmeasured"]
_RANK: dict[Outcome, int] = {"keeps": 0, "undecided": 1, "unmeasured": 2, "loses": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodDecision:
    """One variant.

    Attributes:
        name: what a reader sees.
        outcome: `keeps` where any budget does, else that of its largest.
        budget: the smallest that keeps, else the largest, which is tested first.
        points: by budget, rising; none where nothing counts.
    """

    variant: str
    name: str
    outcome: Outcome
    budget: str
    points: Mapping[str, PointDecision]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer.

    Attributes:
        headline: the answer in one sentence.
        details: up to three sentences on what it rests on.
        size: what this many samples can show; empty of a run that is read once.
        tolerance: 0 to 1.
        n: sources that count.
        full: score of the baseline over all samples; None before any result.
        methods: those that keep the score first, by rising budget.
        cautions: what a reader has to know beside it.
    """

    headline: str
    details: tuple[str, ...]
    size: str
    tolerance: float
    n: int
    full: Interval | None
    methods: tuple[MethodDecision, ...]
    cautions: tuple[str, ...]

    @property
    def sentence(self) -> str:
        return " ".join((self.headline, *self.details))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what limits the decision; the sample size only where no method keeps."""
        return (*filter(None, ("" if self.recommended else self.size,)), *self.cautions)

    @property
    def more(self) -> int | None:
        """About how many samples more would settle the best method; None where none is known."""
        first = self.methods[0] if self.methods else None
        needed = [] if first is None else [p.needed for p in first.points.values() if p.needed]
        return 10 * ceil(max(1, needed[-1] - self.n) / 10) if needed else None

    @property
    def recommended(self) -> MethodDecision | None:
        """The method with the smallest budget that keeps."""
        first = self.methods[0] if self.methods else None
        return first if first is not None and first.outcome == "keeps" else None


def decide_study(
    study: RunRequest, samples: Sequence[Sample], results: Collection[SampleResult]
) -> Decision:
    """Decide with the results that are there, all or some.

    `samples`: in their stored order, which is random (`random_order`).
    """
    study_points = study.points()
    by_key = {result.key: result for result in results}
    done = [
        all((sample.id, point.variant, point.budget) in by_key for point in study_points)
        for sample in samples
    ]
    places = counted(done, [source(sample) for sample in samples])
    if study.read_once and not all(done):
        places = []
    choice = _choose(study, [samples[at] for at in places], by_key)
    methods = _methods(study, choice)
    full = cast("Row", read_results(study, samples, results).baseline)  # each study has it
    full_score = full.mean("score")
    what = "samples" if len({*map(source, samples)}) == len(samples) else "texts"
    headline, *details = _sentences(study, choice, methods, full_score, what)
    if study.read_once and not places:
        headline, details = sentences.READ_LATER.format(len(samples)), []
    elif choice.n < FEWEST_SOURCES:
        headline, details = sentences.NOT_ENOUGH if results else sentences.NO_RESULT, []
        if full.outcomes.get("cut") and full_score is None:
            headline = sentences.FULL_CUT.format(study.max_new_tokens)
    weak = None
    if full_score is not None and full_score.mean < sentences.LEAST_FULL:
        weak = sentences.WEAK_FULL.format(100 * full_score.mean, 100 * sentences.LEAST_FULL)
    sources, count = len({*map(source, samples)}), len(methods) + len(study.earlier_variants)
    can_show = sentences.can_confirm(sources, count, study.tolerance / 100, what)
    say = partial(sentences.against, name=baseline_name(full))
    return Decision(
        headline=say(headline),
        details=tuple(map(say, filter(None, details))),
        size="" if study.read_once else can_show,
        tolerance=study.tolerance / 100,
        n=choice.n,
        full=full_score,
        methods=tuple(methods),
        cautions=(
            *_about_results(study, results),
            *([] if weak is None else [say(weak)]),
            *_about_order(study, samples, places, len(results), what),
        ),
    )


def _choose(
    study: RunRequest, samples: Sequence[Sample], by_key: Mapping[Key, SampleResult]
) -> Choice:
    baseline = study.baseline_point

    def scores(variant: str, budget: str | None) -> list[float]:
        found = [by_key[sample.id, variant, budget].score for sample in samples]
        return [np.nan if score is None else score for score in found]

    _, *points = study.points()
    variants = list(_candidates(study))
    budgets = list(dict.fromkeys(point.budget for point in points))
    table = [[scores(variant, budget) for budget in budgets] for variant in variants]
    return decide(
        np.array(scores(baseline.variant, baseline.budget), np.float64),
        np.array(table, np.float64),
        [source(sample) for sample in samples],
        study.tolerance / 100,
        former=len(study.earlier_variants),
        once=study.read_once,
    )


def _methods(study: RunRequest, choice: Choice) -> list[MethodDecision]:
    _, *points = study.points()
    specs = study.variant_specs()
    names = dict(zip(specs, display_names([*specs.values()]), strict=True))
    budgets = list(dict.fromkeys(point.budget or "" for point in points))
    methods = [
        _method(variant, names[variant], dict(zip(budgets, found, strict=True)), choice.n)
        for variant, found in zip(_candidates(study), choice.points, strict=True)
    ]
    return sorted(methods, key=_rank)


def _candidates(study: RunRequest) -> Mapping[str, None]:
    """Variants that are decided about: all but the full cache and the baseline's."""
    left_out = {FULL, study.baseline_point.variant}
    return dict.fromkeys(p.variant for p in study.points() if p.variant not in left_out)


def _method(variant: str, name: str, points: Mapping[str, PointDecision], n: int) -> MethodDecision:
    *_, largest = points
    budget = next((each for each, found in points.items() if found.state == "keeps"), largest)
    outcome: Outcome = "unmeasured" if n < FEWEST_SOURCES else points[budget].state
    measured = None if outcome == "unmeasured" else points[budget]
    return MethodDecision(
        variant=variant,
        name=name,
        outcome=outcome,
        budget=budget,
        points=points,
        sentence=sentences.of_method(name, budget, measured),
    )


def _rank(method: MethodDecision) -> tuple[float, ...]:
    """Smaller budgets that keep first, then smaller losses."""
    found = method.points[method.budget]
    keeps = Budget.parse(method.budget).amount if method.outcome == "keeps" else 0.0
    loss = found.at_most if found.loss is None or method.outcome == "keeps" else found.loss
    return (_RANK[method.outcome], keeps, loss)


def _sentences(
    study: RunRequest,
    choice: Choice,
    methods: Sequence[MethodDecision],
    full: Interval | None,
    what: str,
) -> tuple[str, ...]:
    """Headline and details of a decision; of too few sources they say nothing."""
    first, tolerance = methods[0], study.tolerance / 100
    found, score = first.points[first.budget], 100 * (full.mean if full else 0.0)
    head = (first.name, first.budget)
    on = sentences.FULL_SCORE.format(score, f"{choice.n:,} {what}")
    states = Counter(each.outcome for each in methods[1:])
    counts = (states["keeps"], states["undecided"], states["loses"])
    rest = sentences.others(*counts, tolerance)
    if not choice.can_show_loss and score < 100 * sentences.LEAST_FULL:
        low = sentences.LOW_FULL.format(score, sentences.points(tolerance))
        return low, sentences.EASIER
    if first.outcome == "keeps":
        smaller = [each for each in first.points.items() if each[0] != first.budget]
        before = [*first.points].index(first.budget)
        after = sentences.next_budget(first.name, *smaller[before - 1], choice.n) if before else ""
        return sentences.kept(*head, found.at_most, tolerance), on, after, rest
    if first.outcome == "undecided":
        headline = sentences.undecided(*head, found.at_most, tolerance)
        settled = sentences.settled_by(found, choice.n, what)
        now = f"{first.name} {sentences.seen(found)} so far.{settled}"
        return headline, on, now, rest
    headline = sentences.lost(*head, found.at_least or 0.0, tolerance, len(methods))
    return headline, on, sentences.LARGER_BUDGET


def _about_results(study: RunRequest, results: Collection[SampleResult]) -> Iterator[str]:
    """Results without a score."""
    cut = [each for each in results if each.outcome == "cut"]
    if cut:
        advice = raise_sentence(len(cut), sum(bool(each.reason) for each in cut))
        again = " Then run the samples under another name." if advice.startswith("Raise") else ""
        counts = (len(cut), len(results), study.max_new_tokens)
        yield sentences.CUT.format(*counts, f"{advice}{again}")
    failed = [result for result in results if result.outcome == "failed"]
    for for_good in (True, False):
        reasons = Counter(result.reason for result in failed if result.for_good == for_good)
        if reasons:
            count = sentences.counted(reasons.total(), "result")
            [(reason, _)] = reasons.most_common(1)
            yield sentences.FAILED.format(count, sentences.FAILS[for_good], reason)


def _about_order(
    study: RunRequest, samples: Sequence[Sample], places: Sequence[int], results: int, what: str
) -> Iterator[str]:
    """What changed, and what does not count."""
    if study.earlier_baselines:
        yield sentences.BASELINE_CHANGED.format(", ".join(study.earlier_baselines))
    if study.earlier_tolerances:
        earlier = ", ".join(f"{each:g}" for each in study.earlier_tolerances)
        yield sentences.TOLERANCE_CHANGED.format(earlier)
    missing = len(samples) * len(study.points()) - results
    if missing > 0:
        sources, count = {*map(source, samples)}, {source(samples[at]) for at in places}
        yield sentences.OPEN_RESULTS.format(missing, len(count), len(sources), what)
    elif len(places) < len(samples):
        more = sentences.counted(len(samples) - len(places), "sample was", "samples were")
        yield sentences.ADDED.format(more)
