"""Tables of a run of many samples, as the DataTable has them. No Gradio."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

from ckv_core.experiment import sweep
from ckv_core.experiment.points import with_bases
from ckv_core.experiment.points_table import points_table
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.runs import point_of
from ckv_core.experiment.sentences import budget_words, spanned
from ckv_core.experiment.study import Sample
from ckv_core.experiment.table import Cell, Column, Item, Table, text_column
from ckv_core.records.run_request import Point
from ui.looks.palette import Look
from ui.tables.points import look_values, looks_by_place


def looks(reading: Reading) -> dict[str, Look]:
    """By variant."""
    of_place = looks_by_place(reading.points)
    return {variant: of_place[place] for variant, place in reading.places.items()}


def figures_table(reading: Reading) -> dict[str, Any]:
    """Value of the DataTable of all figures of every method and budget."""
    table = points_table(
        reading.points,
        file="study-scores.csv",
        link=lambda row: cell_address(reading.slug, point_of(row)),
    )
    return table.value(look_values(reading.points))


def savings_table(reading: Reading) -> dict[str, Any]:
    """Value of the DataTable of budgets of equal score; a sentence where nothing has a base."""
    pairs = with_bases(reading.points.curves)
    if not pairs or len(reading.study.budgets) < 2:
        words = "It takes a method with and without CriticalKV, at two budgets or more."
        return {"rows": [], "empty": words}
    table = sweep.savings_table(
        reading.points,
        [row for row in sweep.saving_rows(pairs, ["score"]) if row["score"].value],
        ["score"],
        file="study-sweep.csv",
        note=f"{sweep.SAVINGS_NOTE} In brackets: 95 % interval.",
        empty="No method without CriticalKV has scored above 0 yet.",
    )
    # Each row stands against its own base.
    return replace(table, head="").value(look_values(reading.points))


def tasks_table(reading: Reading) -> dict[str, Any]:
    """Value of the DataTable of tasks as papers print it; a sentence where there is one task.

    A block a budget, each method followed by itself with CriticalKV, tasks and their mean.
    """
    tasks = list(dict.fromkeys(map(task_of, reading.samples)))
    if len(tasks) < 2:
        return {"rows": [], "empty": "All samples are of one task."}
    scores = _scores_by_task(reading)

    def cell(task: str, point: Point) -> Cell:
        href = cell_address(reading.slug, point, task=task)
        return _with_move(*_score_and_move(reading, scores, point, [task]), href)

    def mean(point: Point) -> Cell:
        return _with_move(*_score_and_move(reading, scores, point, tasks))

    columns: list[Column[Point]] = [
        text_column("method", "Method", lambda point: reading.names[point.variant]),
        Column("budget", "Budget", lambda point: budget_words(point.budget)),
        *(
            Column(f"task{at}", task or "no task", partial(cell, task), unit=_sizes(scores, task))
            for at, task in enumerate(tasks)
        ),
        Column("mean", "Mean", mean, unit="of the tasks"),
    ]
    full, *others = reading.study.points()
    budgets = dict.fromkeys(point.budget for point in others)
    points = [Point(variant, budget) for budget in budgets for variant in _paired(reading)]
    table = Table(
        caption="Task by task",
        columns=columns,
        items=[full, *points],
        file="study-tasks.csv",
        note="Mean score in points of 100 over a task's samples, n of them. In brackets: the same "
        "minus the method without CriticalKV, on the samples that both have.",
    )
    return with_looks(reading, table, [point.variant for point in table.items])


def facts_rows(reading: Reading) -> list[dict[str, str]]:
    """The rows of the Facts are every setting, and what computed it."""
    study, facts = reading.study, reading.facts
    model, versions = facts.get("model_info"), facts.get("environment") or {}
    rows = [
        ("Data", ", ".join(f"{key} {value}" for key, value in study.data.items())),
        ("Model", study.model),
        ("Scenario", study.scenario),
        ("Methods", "\n".join(reading.variants)),
        ("Budgets", ", ".join(study.budgets)),
        ("New tokens", str(study.max_new_tokens)),
        ("Metric", study.metric),
        ("Tolerance", f"{study.tolerance:g} points"),
        ("Baseline", study.baseline),
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


def _scores_by_task(reading: Reading) -> dict[tuple[Point, str], dict[str, float]]:
    """Of each point and task, by sample."""
    task = {sample.id: task_of(sample) for sample in reading.samples}
    scores: dict[tuple[Point, str], dict[str, float]] = {}
    for result in reading.results:
        if result.score is not None:
            key = Point(result.variant, result.budget), task[result.sample]
            scores.setdefault(key, {})[result.sample] = result.score
    return scores


def _sizes(scores: Mapping[tuple[Point, str], Mapping[str, float]], task: str) -> str:
    counts = [len(own) for (_, name), own in scores.items() if name == task]
    return f"n = {spanned(counts)}" if counts else ""


def _paired(reading: Reading) -> list[str]:
    """The variants, each followed by itself with CriticalKV."""
    specs = reading.study.variant_specs()
    family = {variant: specs[variant].base().settings("budget") for variant in reading.variants}
    first = list(dict.fromkeys(family.values()))
    return sorted(reading.variants, key=lambda v: (first.index(family[v]), specs[v].critical))


def _score_and_move(
    reading: Reading,
    scores: Mapping[tuple[Point, str], Mapping[str, float]],
    point: Point,
    tasks: Sequence[str],
) -> tuple[float | None, float | None]:
    """The mean over tasks of their mean score, and of the same minus the base's; None if any is."""
    base = reading.bases.get(point.variant)
    means, moves = [], []
    for task in tasks:
        own = scores.get((point, task), {})
        other = scores.get((Point(base, point.budget), task), {}) if base else {}
        move = [own[sample] - other[sample] for sample in own if sample in other]
        means += [sum(own.values()) / len(own)] if own else []
        moves += [sum(move) / len(move)] if move else []
    whole = sum(means) / len(means) if len(means) == len(tasks) else None
    return whole, sum(moves) / len(moves) if len(moves) == len(tasks) else None


def _with_move(score: float | None, move: float | None, href: str = "") -> Cell:
    text = "" if score is None else f"{100 * score:.1f}"
    brackets = "" if move is None else f" ({100 * move:+.1f})"
    return Cell(text + brackets, None if score is None else 100 * score, href=href)


def with_looks(reading: Reading, table: Table[Item], variants: Sequence[str]) -> dict[str, Any]:
    """Value of the DataTable whose rows are of these variants."""
    marked = replace(
        table,
        head=reading.points.regimes.head,
        marks=[reading.marks[variant] for variant in variants],
        places=[reading.places[variant] for variant in variants],
    )
    return marked.value(look_values(reading.points))


def points_column(
    key: str, label: str, read: Callable[[Item], float | None], unit: str = "points"
) -> Column[Item]:
    """A share as points of 100."""

    def points(item: Item) -> float | None:
        share = read(item)
        return None if share is None else 100 * share

    return Column(key, label, points, unit=unit, form=".1f")
