"""A run of many samples with its results, read once: table, decision and verdict. No torch.

Which method keeps the baseline's score at which smallest budget `decide.py` decides, and
`sentences.py` says it. The baseline is the full cache unless the study names another point.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, cast

import numpy as np

from ckv_core.experiment import sentences
from ckv_core.experiment.decide import FEWEST_SOURCES, Choice, PointDecision, counted, decide
from ckv_core.experiment.points import Points, Row, baseline_name, with_bases
from ckv_core.experiment.runs import l1_answers, read_results, source
from ckv_core.experiment.scores import string_match
from ckv_core.experiment.stats import Interval
from ckv_core.experiment.study import Key, Sample, SampleResult
from ckv_core.experiment.verdict import Group, Member, Verdict
from ckv_core.methods.parameters import Budget
from ckv_core.records.outcomes import State, raise_sentence
from ckv_core.records.run_request import FULL, RunRequest

Outcome = Literal["keeps", "undecided", "unmeasured", "loses"]
# The best first, and what a verdict takes it for.
_STATES: dict[Outcome, State] = {
    "keeps": "kept",
    "undecided": "cut",
    "unmeasured": "cut",
    "loses": "lost",
}


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
        return max(1, needed[-1] - self.n) if needed else None

    @property
    def recommended(self) -> MethodDecision | None:
        """The method with the smallest budget that keeps."""
        first = self.methods[0] if self.methods else None
        return first if first is not None and first.outcome == "keeps" else None


@dataclass(frozen=True, eq=False)
class Reading:
    """A run of many samples.

    Attributes:
        samples: in their stored order, which is random (`random_order`).
        slug: names the run in addresses; empty of a file.
        facts: of a stored run its state, times, model and versions.
    """

    study: RunRequest
    samples: Sequence[Sample]
    results: Sequence[SampleResult]
    slug: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def points(self) -> Points:
        """Its rows, means and pairs."""
        return read_results(self.study, self.samples, self.results)

    @cached_property
    def by_key(self) -> dict[Key, SampleResult]:
        return {result.key: result for result in self.results}

    @cached_property
    def sources(self) -> list[str]:
        """The source of each sample, in the order of `samples`."""
        return [source(sample) for sample in self.samples]

    @property
    def unit(self) -> str:
        """The word for what counts: samples, or texts where several samples share one."""
        return "samples" if len({*self.sources}) == len(self.samples) else "texts"

    @cached_property
    def decision(self) -> Decision:
        """The decision from the results that are there, all or some of the run's."""
        return _decision(self)

    @cached_property
    def verdict(self) -> Verdict:
        """The answer, who by outcome, and what limits it."""
        groups = []
        for outcome, state in _STATES.items():
            own = [each for each in self.decision.methods if each.outcome == outcome]
            if own and self.decision.full is not None:
                members = tuple(map(self._member, own))
                groups.append(Group(state, sentences.STATES[outcome], members))
        return Verdict(
            headline=self.decision.headline,
            regimes=self.points.regimes.head,
            groups=tuple(groups),
            findings=(*self.decision.details, *filter(None, (self.l1_finding,))),
            cautions=self.decision.notes,
        )

    @cached_property
    def l1_finding(self) -> str:
        """Whether lower L1 goes with a better score; empty where nothing varies."""
        moved = l1_answers(self.results)
        return "" if moved is None else sentences.l1_finding(moved)

    def _member(self, method: MethodDecision) -> Member:
        name, found = self.names[method.variant], method.points[method.budget]
        note = sentences.method_note(
            method.budget, None if method.outcome == "unmeasured" else found
        )
        return Member(self.places[method.variant], name, note, self.marks[method.variant])

    @cached_property
    def bases(self) -> dict[str, str]:
        """The base variant of each CriticalKV variant, where the run has it."""
        pairs = with_bases(self.points.curves)
        return {own.first.curve_spec: base.first.curve_spec for own, base in pairs}

    @cached_property
    def variants(self) -> list[str]:
        """SPECs without budget, in the run's order, the full cache apart."""
        return list(dict.fromkeys(p.variant for p in self.study.points() if p.variant != FULL))

    @cached_property
    def candidates(self) -> list[str]:
        """Those that are decided about: all but the baseline's."""
        return [each for each in self.variants if each != self.study.baseline_point.variant]

    @cached_property
    def budgets(self) -> list[str]:
        """As written, rising."""
        return list(dict.fromkeys(point.budget or "" for point in self.study.points()[1:]))

    @cached_property
    def names(self) -> dict[str, str]:
        return {row.curve_spec: row.name for row in self.points.rows}

    @cached_property
    def places(self) -> dict[str, int]:
        return {row.curve_spec: row.place for row in self.points.rows}

    @cached_property
    def marks(self) -> dict[str, str]:
        """Regime of each variant, where there are both."""
        return {variant: self.points.marks[place] for variant, place in self.places.items()}


# --- the decision -------------------------------------------------------------------------


def _decision(reading: Reading) -> Decision:
    study, samples, unit = reading.study, reading.samples, reading.unit
    points = study.points()
    done = [
        all((sample.id, point.variant, point.budget) in reading.by_key for point in points)
        for sample in samples
    ]
    is_early = study.read_once and not all(done)
    places = [] if is_early else counted(done, reading.sources)
    choice = _choice(reading, places)
    methods = _methods(reading, choice)
    full = cast("Row", reading.points.baseline)  # each study has it
    score = full.mean("score")
    headline, *details = _sentences(reading, choice, methods, score)
    if study.read_once and not places:
        headline, details = sentences.READ_LATER.format(len(samples)), []
    elif choice.n < FEWEST_SOURCES:
        headline, details = sentences.NOT_ENOUGH if reading.results else sentences.NO_RESULT, []
        if full.outcomes.get("cut") and score is None:
            headline = sentences.FULL_CUT.format(study.max_new_tokens)
    cautions = [*_about_results(reading)]
    say = partial(sentences.against, name=baseline_name(full))
    if score is not None and score.mean < sentences.LEAST_FULL:
        weak = sentences.WEAK_FULL.format(100 * score.mean, 100 * sentences.LEAST_FULL)
        cautions.append(say(weak))
    sources, count = len({*reading.sources}), len(methods) + len(study.earlier_variants)
    can_show = sentences.can_confirm(sources, count, study.tolerance / 100, unit)
    return Decision(
        headline=say(headline),
        details=tuple(map(say, filter(None, details))),
        size="" if study.read_once else can_show,
        tolerance=study.tolerance / 100,
        n=choice.n,
        full=score,
        methods=tuple(methods),
        cautions=(*cautions, *_about_order(reading, places)),
    )


def _choice(reading: Reading, places: Sequence[int]) -> Choice:
    """The decision about all variants but the full cache and the baseline's."""
    study, baseline = reading.study, reading.study.baseline_point

    def scores(variant: str, budget: str | None) -> list[float]:
        found = [reading.by_key[reading.samples[at].id, variant, budget] for at in places]
        lost = [-np.inf if each.for_good else np.nan for each in found]
        pairs = zip(found, lost, strict=True)
        return [none if each.score is None else each.score for each, none in pairs]

    table = [[scores(each, budget) for budget in reading.budgets] for each in reading.candidates]
    full = np.array(scores(baseline.variant, baseline.budget), np.float64)
    return decide(
        np.where(np.isfinite(full), full, np.nan),
        np.array(table, np.float64),
        [reading.sources[at] for at in places],
        study.tolerance / 100,
        former=len(study.earlier_variants),
        once=study.read_once,
    )


def _methods(reading: Reading, choice: Choice) -> list[MethodDecision]:
    methods = [
        _method(
            variant,
            reading.names[variant],
            dict(zip(reading.budgets, found, strict=True)),
            choice.n,
        )
        for variant, found in zip(reading.candidates, choice.points, strict=True)
    ]
    return sorted(methods, key=_rank)


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
    """Smaller budgets that keep first, then smaller losses; of equal ones the smaller bound."""
    found = method.points[method.budget]
    keeps = Budget.parse(method.budget).amount if method.outcome == "keeps" else 0.0
    loss = found.at_most if found.loss is None or method.outcome == "keeps" else found.loss
    return ([*_STATES].index(method.outcome), keeps, loss, found.at_most)


def _sentences(
    reading: Reading, choice: Choice, methods: Sequence[MethodDecision], full: Interval | None
) -> tuple[str, ...]:
    """Headline and details of a decision; of too few sources they say nothing."""
    first, tolerance, unit = methods[0], reading.study.tolerance / 100, reading.unit
    found, score = first.points[first.budget], 100 * (full.mean if full else 0.0)
    head = (first.name, first.budget)
    on = sentences.FULL_SCORE.format(score, f"{choice.n:,} {unit}")
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
        settled = sentences.settled_by(found, choice.n, unit)
        now = f"{first.name} {sentences.seen(found)} so far.{settled}"
        return headline, on, now, rest
    headline = sentences.lost(*head, found.at_least or 0.0, tolerance, len(methods))
    return headline, on, sentences.LARGER_BUDGET


def _about_results(reading: Reading) -> Iterator[str]:
    """Results without a score."""
    results = reading.results
    cut = [each for each in results if each.outcome == "cut"]
    if cut:
        advice = raise_sentence(len(cut), sum(bool(each.reason) for each in cut))
        again = " Then run the samples under another name." if advice.startswith("Raise") else ""
        counts = (len(cut), len(results), reading.study.max_new_tokens)
        yield sentences.CUT.format(*counts, f"{advice}{again}")
    answers = {each.id: each.answers for each in reading.samples if not each.metric}
    full = [each for each in results if each.variant == FULL and each.sample in answers]
    partly = [each for each in full if 0 < string_match(each.text, answers[each.sample]) < 1]
    if partly and reading.study.metric == string_match.__name__:
        yield sentences.PARTLY.format(sentences.counted(len(partly), "sample"))
    failed = [result for result in results if result.outcome == "failed"]
    for for_good in (True, False):
        reasons = Counter(result.reason for result in failed if result.for_good == for_good)
        if reasons:
            count = sentences.counted(reasons.total(), "result")
            [(reason, _)] = reasons.most_common(1)
            yield sentences.FAILED.format(count, sentences.FAILS[for_good], reason)


def _about_order(reading: Reading, places: Sequence[int]) -> Iterator[str]:
    """Cautions: settings that changed later, results that are open, samples that do not count."""
    study, samples, sources = reading.study, reading.samples, reading.sources
    if study.earlier_baselines:
        yield sentences.BASELINE_CHANGED.format(", ".join(study.earlier_baselines))
    if study.earlier_tolerances:
        earlier = ", ".join(f"{each:g}" for each in study.earlier_tolerances)
        yield sentences.TOLERANCE_CHANGED.format(earlier)
    missing = len(samples) * len(study.points()) - len(reading.results)
    if missing > 0:
        count = {sources[at] for at in places}
        yield sentences.OPEN_RESULTS.format(missing, len(count), len({*sources}), reading.unit)
    elif len(places) < len(samples):
        more = sentences.counted(len(samples) - len(places), "sample was", "samples were")
        yield sentences.ADDED.format(more)
