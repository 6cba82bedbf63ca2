"""The samples of a study: all, or those of one cell of its tables, each a way into Compare."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlencode

from ckv_core.errors import ConfigError
from ckv_core.experiment import table
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.samples import FULL_POINT
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.experiment.table import Column, Table, text_column
from ckv_core.records.run_request import FULL, Point, RunRequest
from ui.tables.samples import points_column

MOST_SAMPLES = 500
QUESTION_CHARS = 80
TEXT_CHARS = 160
TAGS = ("task", "length", "depth")
CELL_NAMES = ("variant", "budget", *TAGS)  # of `cell_address`


@dataclass(frozen=True, slots=True)
class Cell:
    """One score of a table or a map.

    Attributes:
        tags: that its samples have; none for all samples.
    """

    point: Point
    tags: Mapping[str, str]

    def words(self, reading: Reading) -> str:
        at = f" at {self.point.budget}" if self.point.budget else ""
        tags = [f"{name} {value or 'none'}" for name, value in self.tags.items()]
        return ", ".join([f"{reading.names[self.point.variant]}{at}", *tags])

    def holds(self, sample: Sample) -> bool:
        return all(_is(sample.tags.get(name, ""), text) for name, text in self.tags.items())


def read_cell(reading: Reading, parameters: Mapping[str, str]) -> Cell | None:
    """The cell that an address names, which may hold anything; None for none that the study has."""
    point = Point(parameters.get("variant", ""), parameters.get("budget") or None)
    cell = Cell(point, {name: parameters[name] for name in TAGS if name in parameters})
    known = point in reading.study.points() and any(map(cell.holds, reading.samples))
    return cell if known else None


def samples_table(reading: Reading, cell: Cell | None = None) -> dict[str, Any]:
    """Value of the DataTable of samples, those where methods disagree most first.

    Of one cell its samples alone, with what it scored and wrote.
    """
    of_sample: dict[str, list[SampleResult]] = {}
    for result in reading.results:
        of_sample.setdefault(result.sample, []).append(result)
    rows = [
        _Row(reading, sample, of_sample.get(sample.id, []))
        for sample in reading.samples
        if cell is None or cell.holds(sample)
    ]
    rows.sort(key=lambda row: row.spread or 0.0, reverse=True)
    cut = ""
    if len(rows) > MOST_SAMPLES:
        cut = f" The first {MOST_SAMPLES} of {len(rows):,}; the CSV of all results has the rest."
    found = Table(
        caption="Samples",
        columns=_columns(reading, cell),
        items=rows[:MOST_SAMPLES],
        file="study-samples.csv",
        note="Disagreement: best minus worst score among methods and budgets, the full cache apart."
        f" Failed results are tried again by Resume.{cut}",
        empty="There is no result yet.",
    )
    return found.value()


def sample_request(
    study: RunRequest, samples: Iterable[Sample], sample: str, budget: str = ""
) -> RunRequest:
    """A sample with all methods of its study for the Compare form.

    `sample` and `budget` may be anything; a budget that is none of the study's is the smallest.

    Raises:
        ConfigError: there is no such sample.
    """
    own = next((each for each in samples if each.id == sample), None)
    if own is None:
        raise ConfigError(f"The study has no sample {sample[:80]!r}.")
    _, *points = study.points()
    budgets = [point.budget or "" for point in points]
    return RunRequest(
        context=own.context,
        question=own.question,
        answer=own.answers[0],
        scenario=study.scenario,
        model=study.model,
        variants=(FULL, *dict.fromkeys(point.variant for point in points)),
        max_new_tokens=study.max_new_tokens,
        budgets=(budget if budget in budgets else budgets[0],),
    )


def _is(value: object, text: str) -> bool:
    """Whether an address means this tag: 1024 is 1024.0."""
    try:
        return float(str(value)) == float(text)
    except ValueError:
        return str(value) == text


@dataclass(frozen=True)
class _Row:
    """A sample with its results."""

    reading: Reading
    sample: Sample
    results: Sequence[SampleResult]

    def at(self, point: Point) -> SampleResult | None:
        own = (point.variant, point.budget)
        return next((each for each in self.results if (each.variant, each.budget) == own), None)

    @cached_property
    def scored(self) -> list[SampleResult]:
        """Of the methods, by rising score."""
        found = [each for each in self.results if each.variant != FULL and each.score is not None]
        return sorted(found, key=lambda each: each.score or 0.0)

    @property
    def spread(self) -> float | None:
        scored = self.scored
        return (scored[-1].score or 0.0) - (scored[0].score or 0.0) if scored else None

    def end(self, place: int) -> str:
        """The best or worst point; empty where all score alike."""
        if not self.spread:
            return ""
        result = self.scored[place]
        name = self.reading.names[result.variant]
        return f"{name} at {result.budget}: {100 * (result.score or 0):.0f}"

    @property
    def failed(self) -> table.Cell:
        failed = [each for each in self.results if each.state == "failed"]
        reasons = " ".join(dict.fromkeys(each.reason for each in failed))
        return table.Cell(f"{len(failed)}: {reasons}" if failed else "", len(failed))


def _columns(reading: Reading, cell: Cell | None) -> list[Column[_Row]]:
    def link(row: _Row) -> table.Cell:
        names = {"study": reading.slug, "sample": row.sample.id}
        names |= {"budget": cell.point.budget} if cell and cell.point.budget else {}
        return table.Cell(row.sample.id, href="/?" + urlencode(names))

    def score(point: Point, row: _Row) -> float | None:
        result = row.at(point)
        return result.score if result else None

    def text(point: Point, row: _Row) -> str:
        result = row.at(point)
        return _cut(result.text if result else "", TEXT_CHARS)

    own: list[Column[_Row]] = []
    if cell is not None:
        own = [
            points_column("score", cell.words(reading), partial(score, cell.point)),
            text_column("text", "It wrote", partial(text, cell.point)),
        ]
    return [
        text_column("id", "Sample", link, unit="opens in Compare"),
        text_column("question", "Question", lambda row: _cut(row.sample.question, QUESTION_CHARS)),
        *own,
        points_column("full", "Full cache", partial(score, FULL_POINT)),
        text_column("best", "Best point", lambda row: row.end(-1)),
        text_column("worst", "Worst point", lambda row: row.end(0)),
        points_column("spread", "Disagreement", lambda row: row.spread),
        text_column("failed", "Failed", lambda row: row.failed),
    ]


def _cut(text: str, most: int) -> str:
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most else f"{words[:most]}…"
