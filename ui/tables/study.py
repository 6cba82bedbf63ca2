"""A study as the components show it: the answer first, then what it is read from. No Gradio."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from ckv_core.experiment import sentences
from ckv_core.experiment.decide import PointDecision
from ckv_core.experiment.decision import Decision, MethodDecision, decide_study
from ckv_core.experiment.points import Points, with_bases
from ckv_core.experiment.reading import l1_answers, point_of, read_results
from ckv_core.experiment.savings import saving_rows
from ckv_core.experiment.study import FULL, Point, Sample, SampleResult, Study
from ckv_core.records.variants import VariantSpec
from ui.looks.palette import Look
from ui.tables.data_table import (
    Cells,
    Column,
    column,
    data_table,
    figure,
    table_row,
    text_column,
)
from ui.tables.points import SAVINGS_NOTE, looks_by_place, points_value, savings_value

LOOKS = {"keeps": "kept", "undecided": "cut", "loses": "lost", "unmeasured": "cut"}


@dataclass(frozen=True, eq=False)
class StudyReading:
    """A study with its results, read once."""

    slug: str
    study: Study
    samples: Sequence[Sample]
    results: Sequence[SampleResult]

    @cached_property
    def points(self) -> Points:
        """Its rows, means and pairs."""
        return read_results(self.study, self.samples, self.results)

    @cached_property
    def bases(self) -> dict[str, str]:
        """Of each variant with CriticalKV the one without, where the study has it."""
        pairs = with_bases(self.points.curves)
        return {own.first.curve_spec: base.first.curve_spec for own, base in pairs}

    @cached_property
    def decision(self) -> Decision:
        return decide_study(self.study, self.samples, self.results)

    @cached_property
    def variants(self) -> list[str]:
        """SPECs without budget, in the study's order, the full cache apart."""
        return list(dict.fromkeys(p.variant for p in self.study.points() if p.variant != FULL))

    @property
    def head(self) -> str:
        """That query-aware and query-agnostic methods stand beside one another, if they do."""
        return self.points.regimes.head

    @cached_property
    def marks(self) -> dict[str, str]:
        """Regime of each variant, where there are both."""
        marks = self.points.marks
        return {row.curve_spec: marks[row.place] for row in self.points.rows}

    @cached_property
    def names(self) -> dict[str, str]:
        return {row.curve_spec: row.name for row in self.points.rows}

    @cached_property
    def looks(self) -> dict[str, Look]:
        looks = looks_by_place(self.points)
        return {row.curve_spec: looks[row.place] for row in self.points.rows}


def verdict_value(reading: StudyReading) -> dict[str, Any]:
    """Value of the VerdictStrip: the sentence, who by outcome, and what limits it."""
    decision = reading.decision
    groups = []
    for outcome, label in sentences.STATES.items():
        members = [_member(reading, m) for m in decision.methods if m.outcome == outcome]
        if members and decision.full is not None:
            groups.append({"state": LOOKS[outcome], "label": label, "variants": members})
    findings = []
    if (moved := l1_answers(reading.results)) is not None:
        ends = "" if moved.low is None else f", 95 % interval {moved.low:z.2f} to {moved.high:z.2f}"
        findings.append(
            "Rank correlation of lower head L1 with a better score, among methods of one sample "
            f"and budget: {moved.mean:z.2f} (n = {moved.n} samples where both vary{ends})."
        )
    return {
        "headline": decision.sentence,
        "regimes": reading.head,
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
    """Value of the DataTable of every method and budget; a score leads to its samples."""
    return points_value(
        reading.points,
        "Every method and budget",
        "study-scores.csv",
        link=lambda row: cell_address(reading.slug, point_of(row)),
    )


def savings_table(reading: StudyReading) -> dict[str, Any]:
    """Value of the DataTable of budgets of equal score; a sentence where nothing has a base."""
    pairs = with_bases(reading.points.curves)
    if not pairs or len(reading.study.budgets) < 2:
        words = "It takes a method with and without CriticalKV, at two budgets or more."
        return {"rows": [], "empty": words}
    rows = [row for row in saving_rows(pairs, ["score"]) if row["score"].value]
    table = savings_value(
        reading.points,
        rows,
        ["score"],
        file="study-savings.csv",
        note=f"{SAVINGS_NOTE} In brackets: 95 % interval.",
        empty="No method without CriticalKV has scored above 0 yet.",
    )
    return table | {"head": ""}  # each row stands against its own base


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
    base = reading.bases.get(point.variant)
    means, moves = [], []
    for at, task in enumerate(tasks):
        own = scores.get((point, task), {})
        other = scores.get((Point(base, point.budget), task), {}) if base else {}
        move = [own[sample] - other[sample] for sample in own if sample in other]
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
    head, empty = reading.head, "There is no result yet."
    name = f"study-{file}.csv"
    return data_table(caption, columns, rows, file=name, note=note, head=head, empty=empty)


def points_cell(share: float | None) -> dict[str, Any]:
    return figure(None if share is None else 100 * share, "{:.1f}")
