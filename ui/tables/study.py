"""A study as the components show it: the answer first, then what it is read from. No Gradio."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from ckv_core.analysis import names
from ckv_core.analysis.regimes import Regimes, regimes_of
from ckv_core.experiment import sentences
from ckv_core.experiment.decide import PointDecision
from ckv_core.experiment.stats import CONFIDENCE, Match
from ckv_core.methods.parameters import Budget
from ckv_core.request.variants import VariantSpec
from ckv_core.studies.decision import Decision, MethodDecision, decide_study
from ckv_core.studies.reading import PairedRow, Reading, differences, read_results
from ckv_core.studies.records import FULL, Point, Sample, SampleResult, Study
from ckv_core.studies.savings import BudgetSaved, budgets_saved
from ui.looks.palette import Look, looks_of_specs
from ui.tables.data_table import (
    Cells,
    Column,
    column,
    count,
    data_table,
    figure,
    table_row,
    text_column,
)

LOOKS = {"keeps": "kept", "undecided": "cut", "loses": "lost", "unmeasured": "cut"}
SCORES_NOTE = (
    "Score: mean of the metric over the samples, points of 100, with 95 % interval; n counts "
    "independent sources. Of full: measured bytes of the cache over the full cache's. Mean head L1 "
    "is mechanism at one step: lower is not better by itself."
)
PAIRS_NOTE = (
    "Score minus the other's on the same samples, points of 100, with 95 % interval "
    "(Tango's); an interval that holds 0 shows no difference. p: exact McNemar, two-sided, "
    "where scores are 0 or 1; Holm: adjusted over all pairs of this table."
)
SAVINGS_NOTE = (
    "The budget at which the method's mean score reaches that of the method without CriticalKV and "
    "stays there, linear between the budgets tried, as in the paper's Figure 1; over the sources "
    "that both have at every budget with scores, n of them. Interval: 95 %, the budgets at "
    "which the paired difference may be 0. Saved: the share of the other's budget that is not "
    "needed; below 0 more is needed. Budgets at which the other scores 0 are left out."
)


@dataclass(frozen=True, eq=False)
class StudyReading:
    """A study with its results, read once."""

    slug: str
    study: Study
    samples: Sequence[Sample]
    results: Sequence[SampleResult]

    @cached_property
    def scores(self) -> Reading:
        """Scores with intervals, and pairs."""
        return read_results(self.study, self.samples, self.results)

    @cached_property
    def decision(self) -> Decision:
        return decide_study(self.study, self.samples, self.results)

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
        specs = [VariantSpec.parse(variant) for variant in self.variants]
        return dict(zip(self.variants, names.display_names(specs), strict=True)) | {
            FULL: "Full cache"
        }

    @cached_property
    def looks(self) -> dict[str, Look]:
        specs = [FULL, *self.variants]
        return dict(zip(specs, looks_of_specs(specs), strict=True))


def verdict_value(reading: StudyReading) -> dict[str, Any]:
    """Value of the VerdictStrip: the sentence, who by outcome, and what limits it."""
    decision = reading.decision
    groups = []
    for outcome, label in sentences.STATES.items():
        members = [_member(reading, m) for m in decision.methods if m.outcome == outcome]
        if members and decision.full is not None:
            groups.append({"state": LOOKS[outcome], "label": label, "variants": members})
    findings = []
    if (moved := reading.scores.l1_answers) is not None:
        ends = "" if moved.low is None else f", 95 % interval {moved.low:z.2f} to {moved.high:z.2f}"
        findings.append(
            "Rank correlation of lower head L1 with a better score, among methods of one sample "
            f"and budget: {moved.mean:z.2f} (n = {moved.n} samples where both vary{ends})."
        )
    return {
        "headline": decision.sentence,
        "regimes": reading.regimes.head,
        "groups": groups,
        "findings": findings,
        "cautions": list(decision.cautions),
    }


def decision_table(reading: StudyReading) -> dict[str, Any]:
    """Value of the DataTable of methods, best first, and budgets."""
    columns = [
        text_column("method", "Method"),
        column("budget", "Budget", "requested"),
        text_column("outcome", "Outcome"),
        column("loss", "Loss", "points"),
        column("at_most", "Loses at most", "points, 95 %"),
        column("at_least", "Loses at least", "points, 95 %"),
        column("needed", "Decided by about", "samples in all"),
    ]
    rows = [
        _row(reading, method.variant, _decision_cells(method, budget, found))
        for method in reading.decision.methods
        for budget, found in method.points.items()
    ]
    note = sentences.decision_note(reading.decision.tolerance, reading.decision.n)
    return table_of(reading, "What each method comes to", columns, rows, note, "decision")


def scores_table(reading: StudyReading) -> dict[str, Any]:
    columns = [
        text_column("method", "Method"),
        column("budget", "Budget", "requested"),
        column("n", "n", "sources"),
        column("score", "Score", "points"),
        *(column(end, f"Score, {end} end", hidden=True) for end in ("low", "high")),
        column("cut", "Cut", "before an answer"),
        column("failed", "Failed", "samples"),
        column("share", "Of full", "bytes"),
        column("head_l1", "Mean head", "L1"),
    ]
    rows = []
    for row in reading.scores.rows:
        score = points_cell(row.score) | {"href": cell_address(reading.slug, row.point)}
        if row.low is not None and row.high is not None:
            score["text"] += f" ({100 * row.low:.1f} to {100 * row.high:.1f})"
        cells = {
            "method": {"text": reading.names[row.point.variant]},
            "budget": {"text": row.point.budget or "all"},
            "n": count(row.n),
            "score": score,
            "low": points_cell(row.low),
            "high": points_cell(row.high),
            "cut": count(row.cut),
            "failed": count(row.failed),
            "share": figure(row.cache_share, "{:.1%}"),
            "head_l1": figure(row.head_l1, "{:,.4g}"),
        }
        rows.append(_row(reading, row.point.variant, cells))
    return table_of(
        reading, "Score of every method and budget", columns, rows, SCORES_NOTE, "scores"
    )


def pairs_table(reading: StudyReading) -> dict[str, Any]:
    columns = [
        text_column("method", "Method"),
        column("budget", "Budget"),
        text_column("other", "Minus"),
        column("n", "n", "sources"),
        column("mean", "Difference", "points"),
        *(column(end, f"Difference, {end} end", hidden=True) for end in ("low", "high")),
        column("moved", "Better / worse", "sources"),
        column("p", "p", "McNemar"),
        column("holm", "p", "after Holm"),
        text_column("words", "In words"),
    ]
    rows = [
        table_row(_pair_cells(reading, pair), reading.looks[pair.point.variant])
        for pair in reading.scores.pairs
    ]
    table = table_of(reading, "Paired differences", columns, rows, PAIRS_NOTE, "pairs")
    return table | {"head": ""}  # each row stands against its own base or the full cache


def savings_table(reading: StudyReading) -> dict[str, Any]:
    """Value of the DataTable of budgets of equal score; a sentence where nothing has a base."""
    if not reading.scores.bases or len(reading.study.budgets) < 2:
        told = "It takes a method with and without CriticalKV, at two budgets or more."
        return {"rows": [], "empty": told}
    columns = [
        text_column("method", "Method"),
        text_column("other", "Instead of"),
        column("budget", "at a budget of"),
        column("score", "which scores", "points"),
        column("n", "n", "sources"),
        column("needed", "needs", "for the same score"),
        column("interval", "95 % interval", "of what it needs"),
        column("saved", "Saved", "of the budget"),
    ]
    rows = [
        table_row(_saved_cells(reading, saved), reading.looks[saved.variant])
        for saved in budgets_saved(reading.scores)
        if saved.score
    ]
    caption = "Budget saved at an equal score"
    table = table_of(reading, caption, columns, rows, SAVINGS_NOTE, "savings")
    # Each row stands against its own base.
    return table | {"head": "", "empty": "No method without CriticalKV has scored above 0 yet."}


def tasks_table(reading: StudyReading) -> dict[str, Any]:
    """Value of the DataTable of tasks as papers print it; a sentence where there is one task.

    A block a budget, each method followed by itself with CriticalKV, tasks and their mean.
    """
    tasks = list(dict.fromkeys(map(task_of, reading.samples)))
    if len(tasks) < 2:
        return {"rows": [], "empty": "All samples are of one task."}
    scores = _scores_by_task(reading)
    columns = [
        text_column("method", "Method"),
        column("budget", "Budget"),
        *(
            column(f"task{at}", task or "no task", _sizes(scores, task))
            for at, task in enumerate(tasks)
        ),
        column("mean", "Mean", "of the tasks"),
    ]
    full, *_ = reading.study.points()
    budgets = dict.fromkeys(point.budget for point in reading.study.points()[1:])
    points = [Point(variant, budget) for budget in budgets for variant in _paired(reading)]
    rows = [
        _row(reading, point.variant, _task_cells(reading, scores, point, tasks))
        for point in (full, *points)
    ]
    note = (
        "Mean score in points of 100 over a task's samples, n of them. In brackets: the same minus "
        "the method without CriticalKV, on the samples that both have."
    )
    return table_of(reading, "Task by task", columns, rows, note, "tasks")


def facts_rows(reading: StudyReading, facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rows of the Facts are every setting and, of `StoredStudy.facts`, what computed it."""
    study = reading.study
    model, versions = facts.get("model_info"), facts.get("environment") or {}
    rows = [
        ("Data", ", ".join(f"{key} {value}" for key, value in study.data.items())),
        ("Model", study.model),
        ("Scenario", study.scenario),
        ("Variants", "\n".join(study.variants)),
        ("Budgets", ", ".join(study.budgets)),
        ("New tokens", str(study.max_new_tokens)),
        ("Metric", study.metric),
        ("Tolerance", f"{study.tolerance:g} points"),
        ("Weights", f"sha256 {model['sha256']}" if model else "not known"),
        ("Device", f"{model['dtype']} on {model['device']}" if model else "not known"),
        ("Versions", ", ".join(f"{k} {v}" for k, v in versions.items()) or "not known"),
    ]
    return [{"label": label, "text": text} for label, text in rows]


# --- cells --------------------------------------------------------------------------------


def task_of(sample: Sample) -> str:
    """The task that a sample is of; empty for none."""
    return str(sample.tags.get("task", ""))


def cell_address(slug: str, point: Point, **tags: object) -> str:
    """Where the samples of a point are, all or those that have these tags."""
    values = {"id": slug, "variant": point.variant, "budget": point.budget or ""}
    return "/run?" + urlencode(values | tags)


def _scores_by_task(reading: StudyReading) -> dict[tuple[Point, str], dict[str, float]]:
    """Of each point and task, by sample."""
    task = {sample.id: task_of(sample) for sample in reading.samples}
    scores: dict[tuple[Point, str], dict[str, float]] = {}
    for result in reading.results:
        if result.score is not None:
            key = Point(result.variant, result.budget), task[result.sample]
            scores.setdefault(key, {})[result.sample] = result.score
    return scores


def _sizes(scores: Mapping[tuple[Point, str], Mapping[str, float]], task: str) -> str:
    counts = sorted({len(own) for (_, name), own in scores.items() if name == task})
    ends = dict.fromkeys(f"{counts[at]:,}" for at in (0, -1)) if counts else ()
    return f"n = {' to '.join(ends)}" if ends else ""


def _paired(reading: StudyReading) -> list[str]:
    """The variants, each followed by itself with CriticalKV."""
    specs = {variant: VariantSpec.parse(variant) for variant in reading.variants}
    family = {variant: spec.base().settings() for variant, spec in specs.items()}
    first = list(dict.fromkeys(family.values()))
    return sorted(reading.variants, key=lambda v: (first.index(family[v]), specs[v].critical))


def _task_cells(
    reading: StudyReading,
    scores: Mapping[tuple[Point, str], Mapping[str, float]],
    point: Point,
    tasks: Sequence[str],
) -> dict[str, Any]:
    cells: dict[str, Any] = {
        "method": {"text": reading.names[point.variant]},
        "budget": {"text": point.budget or "all"},
    }
    base = reading.scores.bases.get(point.variant)
    means, moves = [], []
    for at, task in enumerate(tasks):
        own = scores.get((point, task), {})
        other = scores.get((Point(base, point.budget), task), {}) if base else {}
        move = differences(own, other)
        means += [sum(own.values()) / len(own)] if own else []
        moves += [sum(move) / len(move)] if move else []
        cell = _with_move(means[-1] if own else None, moves[-1] if move else None)
        cells[f"task{at}"] = cell | {"href": cell_address(reading.slug, point, task=task)}
    whole = sum(means) / len(means) if len(means) == len(tasks) else None
    moved = sum(moves) / len(moves) if len(moves) == len(tasks) else None
    return cells | {"mean": _with_move(whole, moved)}


def _with_move(score: float | None, move: float | None) -> dict[str, Any]:
    cell = points_cell(score)
    return cell if move is None else cell | {"text": f"{cell['text']} ({100 * move:+.1f})"}


def _member(reading: StudyReading, method: MethodDecision) -> dict[str, Any]:
    # The sentence begins with the name, which stands beside it already.
    note = method.sentence.removeprefix(method.name).removeprefix(":").strip().rstrip(".")
    return {
        "name": reading.names[method.variant],
        "note": note,
        "regime": reading.marks[method.variant],
        "look": reading.looks[method.variant].value,
    }


def _decision_cells(method: MethodDecision, budget: str, found: PointDecision) -> Cells:
    is_open = method.outcome == "unmeasured"
    return {
        "method": {"text": method.name},
        "budget": {"text": budget},
        "outcome": {"text": sentences.STATES["unmeasured" if is_open else found.state]},
        "loss": points_cell(found.loss),
        "at_most": points_cell(None if is_open else found.at_most),
        "at_least": points_cell(found.at_least),
        "needed": figure(found.needed, "{:,}"),
    }


def _pair_cells(reading: StudyReading, pair: PairedRow) -> dict[str, Any]:
    found, interval = pair.found, pair.found.mean
    mean, low, high = map(_signed, (interval.mean, interval.low, interval.high))
    mean["text"] += f" ({low['text']} to {high['text']})"
    return {
        "method": {"text": reading.names[pair.point.variant]},
        "budget": {"text": pair.point.budget or "all"},
        "other": {"text": reading.names.get(pair.other.variant, pair.other.variant)},
        "n": count(interval.n),
        "mean": mean,
        "low": low,
        "high": high,
        "moved": {"text": f"{found.higher} / {found.lower}", "value": found.higher - found.lower},
        "p": figure(found.p, "{:.2g}"),
        "holm": figure(pair.holm_p, "{:.2g}"),
        "words": {"text": _in_words(pair)},
    }


def _saved_cells(reading: StudyReading, saved: BudgetSaved) -> Cells:
    needed, budget = saved.needed.budget, Budget.parse(saved.target.budget or "").amount
    ends = [_needed(end, saved.budgets) for end in (saved.low, saved.high) if end is not None]
    return {
        "method": {"text": reading.names[saved.variant]},
        "other": {"text": reading.names[saved.target.variant]},
        "budget": {"text": saved.target.budget},
        "score": points_cell(saved.score),
        "n": count(saved.n),
        "needed": {"text": _needed(saved.needed, saved.budgets), "value": needed},
        "saved": figure(None if needed is None else 1 - needed / budget, "{:+.0%}"),
        "interval": {"text": " to ".join(dict.fromkeys(ends))},
    }


def _needed(match: Match, tried: Sequence[str]) -> str:
    """`8.2%`; `5% or less` and `over 50%` outside the budgets tried."""
    if match.budget is None:
        return f"over {tried[-1]}" if match.outcome == "worse" else f"{tried[0]} or less"
    return f"{match.budget:.1f}%" if tried[0].endswith("%") else f"{match.budget:,.0f}"


def _in_words(pair: PairedRow) -> str:
    mean = pair.found.mean
    holds_0 = mean.low is None or mean.high is None or mean.low <= 0 <= mean.high
    is_shown = not holds_0 if pair.holm_p is None else pair.holm_p < 1 - CONFIDENCE
    if not is_shown:
        return "no difference shown"
    return "scores lower" if mean.mean < 0 else "scores higher"


def _row(reading: StudyReading, variant: str, cells: Cells) -> dict[str, Any]:
    return table_row(cells, reading.looks[variant], reading.marks[variant])


def table_of(
    reading: StudyReading,
    caption: str,
    columns: list[Column],
    rows: list[dict[str, Any]],
    note: str,
    file: str,
) -> dict[str, Any]:
    head, empty = reading.regimes.head, "There is no result yet."
    name = f"study-{file}.csv"
    return data_table(caption, columns, rows, file=name, note=note, head=head, empty=empty)


def points_cell(share: float | None) -> dict[str, Any]:
    return figure(None if share is None else 100 * share, "{:.1f}")


def _signed(share: float | None) -> dict[str, Any]:
    return figure(None if share is None else 100 * share, "{:+.1f}")
