"""Task by task, what a method does to score, length and repetition of what is written. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ckv_core.experiment.negatives import negatives
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.sentences import budget_words
from ckv_core.experiment.stats import score_interval
from ckv_core.experiment.study import SampleResult
from ckv_core.experiment.table import Column, Table, text_column
from ckv_core.records.run_request import FULL, Point

GRAM = 4  # words
NOTE = (
    "Score: mean of 100 over n, a cut text left out. Lost: whole score with the full cache, "
    "missed here. Words: mean of a text; the full cache's on the same samples is 100 %. At the "
    "limit: ended by the limit of new tokens. Repeated: share of groups of 4 words that stood "
    "before in the same text (seq-rep-4, Welleck et al. 2020)."
)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One method at one budget on one task."""

    task: str
    name: str
    point: Point
    results: Sequence[SampleResult]
    full: Sequence[SampleResult]  # of the same samples, in the same order
    lost: int

    @property
    def score(self) -> float | None:
        known = [each.score for each in self.results if each.score is not None]
        return 100 * score_interval(known).mean if known else None

    @property
    def words(self) -> float:
        return _mean([len(each.text.split()) for each in self.results])

    @property
    def against_full(self) -> float | None:
        whole = _mean([len(each.text.split()) for each in self.full])
        return 100 * self.words / whole if whole else None

    @property
    def at_limit(self) -> float:
        return 100 * _mean([each.stopped == "length" for each in self.results])

    @property
    def repeated(self) -> float:
        return 100 * _mean([repetition(each.text) for each in self.results])


def repetition(text: str) -> float:
    """Share of the groups of four words that stood before in the text; 0 of fewer words."""
    words = text.lower().split()
    groups = [tuple(words[at : at + GRAM]) for at in range(len(words) - GRAM + 1)]
    return 1 - len({*groups}) / len(groups) if groups else 0.0


def behaviours(reading: Reading) -> list[Behaviour]:
    """Every task and point that has results, tasks by name."""
    tasks = {each.id: str(each.tags.get("task", "")) for each in reading.samples}
    full = {each.sample: each for each in reading.results if each.variant == FULL}
    done: dict[tuple[str, Point], list[SampleResult]] = {}
    for each in reading.results:
        if each.sample in full and each.state == full[each.sample].state == "done":
            key = tasks[each.sample], Point(each.variant, each.budget)
            done.setdefault(key, []).append(each)
    flips = [(tasks[n.sample.id], n.point) for n in negatives(reading)]
    return [
        Behaviour(
            task=task,
            name=reading.names[point.variant] if point.variant != FULL else "Full cache",
            point=point,
            results=found,
            full=[full[each.sample] for each in found],
            lost=flips.count((task, point)),
        )
        for task in sorted({*tasks.values()})
        for point in reading.study.points()
        if (found := done.get((task, point)))
    ]


def behaviour_table(reading: Reading) -> Table[Behaviour]:
    """A row a task, method and budget."""

    def number(key: str, label: str, form: str = ".1f", unit: str = "") -> Column[Behaviour]:
        return Column(key, label, partial(_read, key), form=form, unit=unit)

    return Table(
        caption="Score, length and repetition by task",
        columns=[
            text_column("task", "Task", lambda each: each.task or "all"),
            text_column("method", "Method", lambda each: each.name),
            text_column("budget", "Budget", lambda each: budget_words(each.point.budget)),
            Column("n", "n", lambda each: len(each.results)),
            number("score", "Score"),
            number("lost", "Lost", "d"),
            number("words", "Words"),
            number("against_full", "Of full", ".0f", "%"),
            number("at_limit", "At the limit", ".0f", "%"),
            number("repeated", "Repeated", ".1f", "%"),
        ],
        items=behaviours(reading),
        file="study-behaviour.csv",
        note=NOTE,
        empty="No sample is done yet.",
    )


def _read(name: str, item: Behaviour) -> float | None:
    value: float | None = getattr(item, name)
    return value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
