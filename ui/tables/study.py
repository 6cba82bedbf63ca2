"""A study as the components show it: the answer first, then what it is read from. No Gradio."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from ckv_core.analysis import names
from ckv_core.analysis.regimes import Regimes, regimes_of
from ckv_core.errors import ConfigError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.variants import VariantSpec
from ckv_core.studies.decision import Decision, MethodDecision, decide
from ckv_core.studies.reading import PairedRow, Reading, read_results
from ckv_core.studies.records import FULL, Point, Sample, SampleResult, Study
from ui.looks.palette import Look, look_of

MOST_SAMPLES = 500
QUESTION_CHARS = 80
OUTCOMES = {
    "kept": ("kept", "Keeps the score, confirmed"),
    "undecided": ("cut", "Undecided"),
    "lost": ("lost", "Loses it on the other half"),
    "none": ("lost", "No budget tried keeps it"),
}
DECISION_NOTE = (
    "The smallest budget is chosen on one half of the samples and confirmed on the other. "
    "Differences are points of 100 against the full cache on the same samples; at least and at "
    "most: one-sided 95 % bounds of the confirming half. n counts independent sources."
)
SCORES_NOTE = (
    "Score: mean of the metric over the samples, points of 100, with 95 % interval; n counts "
    "independent sources. Of full: measured bytes of the cache over the full cache's. Mean head L1 "
    "is mechanism at one step: lower is not better by itself."
)
PAIRS_NOTE = (
    "Score minus the other's on the same samples, points of 100, with 95 % interval (Tango's, or "
    "paired bootstrap); an interval that holds 0 shows no difference. p: exact McNemar, two-sided, "
    "where scores are 0 or 1; Holm: adjusted over all pairs of this table."
)


@dataclass(frozen=True, eq=False)
class StudyReading:
    """A study with its results, read once."""

    slug: str
    study: Study
    samples: Sequence[Sample]
    results: Sequence[SampleResult]

    @cached_property
    def reading(self) -> Reading:
        """Scores with intervals, and pairs."""
        return read_results(self.study, self.samples, self.results)

    @cached_property
    def decision(self) -> Decision:
        """The answer."""
        return decide(self.study, self.samples, self.results)

    @cached_property
    def variants(self) -> list[str]:
        """SPECs without budget, in the study's order, the full cache apart."""
        return list(dict.fromkeys(p.variant for p in self.study.points() if p.variant != FULL))

    @cached_property
    def regimes(self) -> Regimes:
        """Of the variants, in that order."""
        methods = [VariantSpec.parse(variant).method.name for variant in self.variants]
        return regimes_of(methods, {self.study.scenario})

    @cached_property
    def marks(self) -> dict[str, str]:
        """Regime of each variant, where there are both."""
        return dict(zip(self.variants, self.regimes.marks, strict=True)) | {FULL: ""}

    @cached_property
    def names(self) -> dict[str, str]:
        """Of each variant, as everywhere."""
        specs = [VariantSpec.parse(variant) for variant in self.variants]
        return dict(zip(self.variants, names.display_names(specs), strict=True)) | {
            FULL: "Full cache"
        }

    @cached_property
    def looks(self) -> dict[str, Look]:
        """Of each variant."""
        return {variant: look_of(variant) for variant in (FULL, *self.variants)}


def verdict_value(found: StudyReading) -> dict[str, Any]:
    """Value of the VerdictStrip: the sentence, who by outcome, and what limits it."""
    decision = found.decision
    groups = []
    for outcome, (state, label) in OUTCOMES.items():
        members = [_member(found, m) for m in decision.methods if m.outcome == outcome]
        if members and decision.full is not None:
            groups.append({"state": state, "label": label, "variants": members})
    findings = []
    if (moved := found.reading.l1_answers) is not None:
        ends = "" if moved.low is None else f", 95 % interval {moved.low:z.2f} to {moved.high:z.2f}"
        findings.append(
            "Rank correlation of lower head L1 with a better score, among methods of one sample "
            f"and budget: {moved.mean:z.2f} (n = {moved.n} samples where both vary{ends})."
        )
    return {
        "headline": decision.sentence,
        "regimes": found.regimes.head,
        "groups": groups,
        "findings": findings,
        "cautions": list(decision.cautions),
    }


def decision_table(found: StudyReading) -> dict[str, Any]:
    """Value of the DataTable of methods, best first."""
    columns = [
        _column("method", "Method", align="left"),
        _column("outcome", "Outcome", align="left"),
        _column("budget", "Smallest budget"),
        _column("chosen", "On the choosing half", "points"),
        _column("confirmed", "On the confirming half", "points"),
        _column("low", "At least", "points, 95 %"),
        _column("high", "At most", "points, 95 %"),
    ]
    rows = [_row(found, m.variant, _decision_cells(found, m)) for m in found.decision.methods]
    return _table(found, "What each method comes to", columns, rows, DECISION_NOTE, "decision")


def scores_table(found: StudyReading) -> dict[str, Any]:
    """Value of the DataTable of all points."""
    columns = [
        _column("method", "Method", align="left"),
        _column("budget", "Budget", "requested"),
        _column("n", "n", "sources"),
        _column("score", "Score", "points"),
        *(_column(end, f"Score, {end} end", hidden=True) for end in ("low", "high")),
        _column("failed", "Failed", "samples"),
        _column("share", "Of full", "bytes"),
        _column("head_l1", "Mean head", "L1"),
    ]
    rows = []
    for row in found.reading.rows:
        score = _points(row.score)
        if row.low is not None and row.high is not None:
            score["text"] += f" ({100 * row.low:.1f} to {100 * row.high:.1f})"
        cells = {
            "method": {"text": found.names[row.point.variant]},
            "budget": {"text": row.point.budget or "all"},
            "n": _count(row.n),
            "score": score,
            "low": _points(row.low),
            "high": _points(row.high),
            "failed": _count(row.failed),
            "share": _shown(row.cache_share, "{:.1%}"),
            "head_l1": _shown(row.head_l1, "{:,.4g}"),
        }
        rows.append(_row(found, row.point.variant, cells))
    return _table(found, "Score of every method and budget", columns, rows, SCORES_NOTE, "scores")


def pairs_table(found: StudyReading) -> dict[str, Any]:
    """Value of the DataTable of paired differences."""
    columns = [
        _column("method", "Method", align="left"),
        _column("budget", "Budget"),
        _column("other", "Minus", align="left"),
        _column("n", "n", "sources"),
        _column("mean", "Difference", "points"),
        *(_column(end, f"Difference, {end} end", hidden=True) for end in ("low", "high")),
        _column("moved", "Better / worse", "sources"),
        _column("p", "p", "McNemar"),
        _column("holm", "p", "after Holm"),
        _column("words", "In words", align="left"),
    ]
    rows = [
        {"look": found.looks[pair.point.variant].value, "cells": _pair_cells(found, pair)}
        for pair in found.reading.pairs
    ]
    table = _table(found, "Paired differences", columns, rows, PAIRS_NOTE, "pairs")
    return table | {"head": ""}  # each row stands against its own base or the full cache


def tasks_table(found: StudyReading) -> dict[str, Any]:
    """Value of the DataTable method x task; a sentence where all samples are of one task."""
    by_task: dict[str, list[Sample]] = {}
    for sample in found.samples:
        by_task.setdefault(str(sample.tags.get("task", "")), []).append(sample)
    if len(by_task) < 2:
        return {"rows": [], "empty": "All samples are of one task."}
    scores = {
        (r.sample, Point(r.variant, r.budget)): r.score
        for r in found.results
        if r.score is not None
    }
    columns = [
        _column("method", "Method", align="left"),
        _column("budget", "Budget"),
        *(_column(f"task{at}", task or "no task") for at, task in enumerate(by_task)),
    ]
    rows = []
    for point in found.study.points():
        cells: dict[str, Any] = {
            "method": {"text": found.names[point.variant]},
            "budget": {"text": point.budget or "all"},
        }
        for at, members in enumerate(by_task.values()):
            own = [s for each in members if (s := scores.get((each.id, point))) is not None]
            mean = _points(sum(own) / len(own) if own else None)
            cells[f"task{at}"] = mean | {"text": f"{mean['text']}, n = {len(own)}" if own else ""}
        rows.append(_row(found, point.variant, cells))
    note = "Mean score in points of 100 over a task's samples; n counts samples."
    return _table(found, "Task by task", columns, rows, note, "tasks")


def samples_table(found: StudyReading) -> dict[str, Any]:
    """Value of the DataTable of samples, those where methods disagree most first."""
    of_sample: dict[str, list[SampleResult]] = {}
    for result in found.results:
        of_sample.setdefault(result.sample, []).append(result)
    rows: list[dict[str, Any]] = [
        {"look": None, "cells": _sample_cells(found, sample, of_sample.get(sample.id, []))}
        for sample in found.samples
    ]
    rows.sort(key=lambda row: row["cells"]["spread"]["value"] or 0.0, reverse=True)
    cut = ""
    if len(rows) > MOST_SAMPLES:
        cut = f" The first {MOST_SAMPLES} of {len(rows):,}; the CSV of all results has the rest."
    columns = [
        _column("id", "Sample", "opens in Compare", align="left"),
        _column("question", "Question", align="left"),
        _column("full", "Full cache", "points"),
        _column("best", "Best point", align="left"),
        _column("worst", "Worst point", align="left"),
        _column("spread", "Disagreement", "points"),
        _column("failed", "Failed", align="left"),
    ]
    note = (
        "Disagreement: best minus worst score among methods and budgets, the full cache apart. "
        f"Failed results are retried by Go on.{cut}"
    )
    table = _table(found, "Samples", columns, rows[:MOST_SAMPLES], note, "samples")
    return table | {"head": ""}


def sample_request(study: Study, samples: Iterable[Sample], sample: str) -> CompareRequest:
    """A sample with all methods of its study, at the smallest budget, for the Compare form.

    Raises:
        ConfigError: there is no such sample.
    """
    own = next((each for each in samples if each.id == sample), None)
    if own is None:
        raise ConfigError(f"The study has no sample {sample[:80]!r}.")
    _, *points = study.points()
    return CompareRequest(
        context=own.context,
        question=own.question,
        answer=own.answers[0],
        scenario=study.scenario,
        model=study.model,
        variants=(FULL, *dict.fromkeys(point.variant for point in points)),
        max_new_tokens=study.max_new_tokens,
        defaults={"budget": points[0].budget or ""},
    )


# --- cells --------------------------------------------------------------------------------


def _member(found: StudyReading, method: MethodDecision) -> dict[str, Any]:
    # The sentence begins with the SPEC, which stands beside it already.
    note = method.sentence.removeprefix(method.variant).removeprefix(":").strip().rstrip(".")
    return {
        "name": found.names[method.variant],
        "note": note,
        "regime": found.marks[method.variant],
        "look": found.looks[method.variant].value,
    }


def _decision_cells(found: StudyReading, method: MethodDecision) -> dict[str, Any]:
    chosen, confirmed = _signed(method.chosen_difference), _signed(method.confirmed_difference)
    return {
        "method": {"text": found.names[method.variant]},
        "outcome": {"text": OUTCOMES[method.outcome][1]},
        "budget": {"text": method.budget or "none"},
        "chosen": chosen | {"text": _with_n(chosen["text"], method.chosen_n)},
        "confirmed": confirmed | {"text": _with_n(confirmed["text"], method.confirmed_n)},
        "low": _signed(method.low),
        "high": _signed(method.high),
    }


def _pair_cells(found: StudyReading, pair: PairedRow) -> dict[str, Any]:
    mean = _signed(pair.mean)
    mean["text"] += f" ({100 * pair.low:+.1f} to {100 * pair.high:+.1f})"
    return {
        "method": {"text": found.names[pair.point.variant]},
        "budget": {"text": pair.point.budget or "all"},
        "other": {"text": found.names.get(pair.other.variant, pair.other.variant)},
        "n": _count(pair.n),
        "mean": mean,
        "low": _signed(pair.low),
        "high": _signed(pair.high),
        "moved": {"text": f"{pair.higher} / {pair.lower}", "value": pair.higher - pair.lower},
        "p": _shown(pair.p, "{:.2g}"),
        "holm": _shown(pair.holm_p, "{:.2g}"),
        "words": {"text": _in_words(pair)},
    }


def _in_words(pair: PairedRow) -> str:
    p = pair.holm_p
    if p is not None:
        if p >= 0.05:
            return "no difference shown"
        return "scores lower" if pair.mean < 0 else "scores higher"
    if pair.low <= 0 <= pair.high:
        return "no difference shown"
    return "scores lower" if pair.mean < 0 else "scores higher"


def _sample_cells(
    found: StudyReading, sample: Sample, results: Sequence[SampleResult]
) -> dict[str, Any]:
    evicting = [r for r in results if r.variant != FULL and r.score is not None]
    scored = sorted(evicting, key=lambda r: r.score or 0.0)
    full = next((r.score for r in results if r.variant == FULL), None)
    spread = (scored[-1].score or 0.0) - (scored[0].score or 0.0) if scored else None
    ends = [_point_text(found, scored[at]) for at in (-1, 0)] if spread else ["", ""]
    reasons = list(dict.fromkeys(r.reason for r in results if r.state == "failed"))
    failed = sum(r.state == "failed" for r in results)
    words = " ".join(sample.question.split())
    question = words if len(words) <= QUESTION_CHARS else f"{words[:QUESTION_CHARS]}…"
    address = "/?" + urlencode({"study": found.slug, "sample": sample.id})
    return {
        "id": {"text": sample.id, "href": address},
        "question": {"text": question},
        "full": _points(full),
        "best": {"text": ends[0]},
        "worst": {"text": ends[1]},
        "spread": _points(spread),
        "failed": {"text": f"{failed}: {' '.join(reasons)}" if failed else "", "value": failed},
    }


def _point_text(found: StudyReading, result: SampleResult) -> str:
    return f"{found.names[result.variant]} at {result.budget}: {100 * (result.score or 0):.0f}"


def _row(found: StudyReading, variant: str, cells: Mapping[str, Any]) -> dict[str, Any]:
    return {"look": found.looks[variant].value, "regime": found.marks[variant], "cells": cells}


def _table(
    found: StudyReading,
    caption: str,
    columns: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    note: str,
    file: str,
) -> dict[str, Any]:
    return {
        "caption": caption,
        "head": found.regimes.head,
        "columns": columns,
        "rows": rows,
        "note": note,
        "file": f"study-{file}.csv",
        "empty": "There is no result yet.",
    }


def _column(
    key: str, label: str, unit: str = "", *, align: str = "right", hidden: bool = False
) -> dict[str, Any]:
    return {"key": key, "label": label, "unit": unit, "align": align, "hidden": hidden}


def _count(value: int) -> dict[str, Any]:
    return {"text": f"{value:,}", "value": value}


def _shown(value: float | None, form: str) -> dict[str, Any]:
    return {"text": "" if value is None else form.format(value), "value": value}


def _points(share: float | None) -> dict[str, Any]:
    return _shown(None if share is None else 100 * share, "{:.1f}")


def _signed(share: float | None) -> dict[str, Any]:
    return _shown(None if share is None else 100 * share, "{:+.1f}")


def _with_n(text: str, n: int) -> str:
    return f"{text}, n = {n}" if text else ""
