"""A run of many samples with its results, read once: table, decision and verdict. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ckv_core.experiment import sentences
from ckv_core.experiment.decision import Decision, MethodDecision, decide_study
from ckv_core.experiment.points import Points, with_bases
from ckv_core.experiment.runs import l1_answers, read_results
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.experiment.verdict import Group, Member, Verdict
from ckv_core.records.outcomes import State
from ckv_core.records.run_request import FULL, RunRequest

_STATES: dict[str, State] = {
    "keeps": "kept",
    "undecided": "cut",
    "loses": "lost",
    "unmeasured": "cut",
}


@dataclass(frozen=True, eq=False)
class Reading:
    """`slug` names the run in addresses; it is empty of a file."""

    study: RunRequest
    samples: Sequence[Sample]
    results: Sequence[SampleResult]
    slug: str = ""

    @cached_property
    def points(self) -> Points:
        """Its rows, means and pairs."""
        return read_results(self.study, self.samples, self.results)

    @cached_property
    def decision(self) -> Decision:
        return decide_study(self.study, self.samples, self.results)

    @cached_property
    def verdict(self) -> Verdict:
        """The answer, who by outcome, and what limits it."""
        groups = []
        for outcome, label in sentences.STATES.items():
            own = [each for each in self.decision.methods if each.outcome == outcome]
            if own and self.decision.full is not None:
                groups.append(Group(_STATES[outcome], label, tuple(map(self._member, own))))
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
    def names(self) -> dict[str, str]:
        return {row.curve_spec: row.name for row in self.points.rows}

    @cached_property
    def places(self) -> dict[str, int]:
        return {row.curve_spec: row.place for row in self.points.rows}

    @cached_property
    def marks(self) -> dict[str, str]:
        """Regime of each variant, where there are both."""
        return {variant: self.points.marks[place] for variant, place in self.places.items()}
