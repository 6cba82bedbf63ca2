"""The samples of a study: all, or those of one cell of its tables, each a way into Compare."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from statistics import pstdev
from typing import Any
from urllib.parse import urlencode

from ckv_core.experiment import sentences, table
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.sentences import clipped
from ckv_core.experiment.study import Key, Sample, SampleResult
from ckv_core.experiment.table import Column, Table, text_column
from ckv_core.records.run_request import FULL, Point
from ui.tables.points import look_values

MOST_SAMPLES = 500
SHOWN_FIRST = 8  # before the reader asks for all
MOST_METHODS = 8  # beside one another; others are shown on demand
QUESTION_CHARS = 80
TEXT_CHARS = 20
TITLE_CHARS = 300
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
        at = f" at {sentences.budget_words(self.point.budget)}" if self.point.budget else ""
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
    """Value of the DataTable of samples where methods disagree, those where most do first.

    Of one cell all its samples. A row has what each method wrote at the cell's budget, or at the
    one where methods disagree most often.
    """
    results = {result.key: result for result in reading.results}
    budgets = dict.fromkeys(point.budget for point in reading.study.points()[1:])
    pages = [_Page(reading, results, budget) for budget in reversed(budgets)]
    if cell is not None and cell.point.budget is not None:
        pages = [page for page in pages if page.budget == cell.point.budget]
    page = max(pages, key=lambda page: sum(map(page.spread, page.disagreeing)))
    found = page.disagreeing
    if cell is not None:
        found = sorted(filter(cell.holds, reading.samples), key=page.spread, reverse=True)
    at = sentences.budget_words(page.budget or "")
    cut = ""
    if len(found) > MOST_SAMPLES:
        cut = f" The first {MOST_SAMPLES} of {len(found):,}; the CSV of all results has the rest."
    shown = Table(
        caption=f"Samples at {at}",
        columns=_columns(page, cell),
        items=found[:MOST_SAMPLES],
        file="study-samples.csv",
        note=f"Cells show what a method wrote where it misses the expected answer.{cut}",
        empty="In no sample so far do two methods differ in score.",
        first=0 if cell else SHOWN_FIRST,
    )
    return shown.value(look_values(reading.points)) | {"opens": True}


def _is(value: object, text: str) -> bool:
    """Whether an address means this tag: 1024 is 1024.0."""
    try:
        return float(str(value)) == float(text)
    except ValueError:
        return str(value) == text


@dataclass(frozen=True)
class _Page:
    """All samples with the results of one budget."""

    reading: Reading
    results: Mapping[Key, SampleResult]
    budget: str | None

    def of(self, sample: Sample, variant: str) -> SampleResult | None:
        budget = None if variant == FULL else self.budget
        return self.results.get((sample.id, variant, budget))

    def spread(self, sample: Sample) -> float:
        """Standard deviation of the methods' scores; a cut or failed text counts as 0."""
        known = [self.of(sample, variant) for variant in self.reading.variants]
        scores = [each.score or 0.0 for each in known if each is not None]
        return pstdev(scores) if scores else 0.0

    @cached_property
    def disagreeing(self) -> list[Sample]:
        """Those where scores differ most first."""
        spreads = {sample.id: self.spread(sample) for sample in self.reading.samples}
        found = [sample for sample in self.reading.samples if spreads[sample.id] > 0]
        return sorted(found, key=lambda sample: -spreads[sample.id])

    def differing(self, sample: Sample, result: SampleResult) -> str:
        full = self.of(sample, FULL)
        return clipped(_from_first_difference(result.text, full.text if full else ""), TEXT_CHARS)

    def wrote(self, variant: str, sample: Sample) -> table.Cell | None:
        """What a method wrote, unless it answers."""
        result = self.of(sample, variant)
        if result is None:
            return None
        word, whole = result.outcome, clipped(result.text, TITLE_CHARS)
        is_right = word == "answered" and result.score == 1
        text = "" if is_right or word == "failed" else self.differing(sample, result)
        title = f"{word}: {result.reason or whole}"
        value = None if result.score is None else 100 * result.score
        return table.Cell(text, value, title=title, outcome=word, word=word)


def _columns(page: _Page, cell: Cell | None) -> list[Column[Sample]]:
    reading = page.reading
    shown = [m.variant for m in reading.decision.methods]
    chosen = cell.point.variant if cell else ""
    shown.sort(key=lambda variant: variant != chosen)
    if chosen == FULL:
        shown.insert(0, FULL)

    def link(sample: Sample) -> table.Cell:
        names = {"study": reading.slug, "sample": sample.id, "budget": page.budget or ""}
        return table.Cell(sample.id, href="/?" + urlencode(names))

    return [
        text_column("id", "Sample", link),
        text_column(
            "question",
            "Question",
            lambda sample: clipped(sample.question, QUESTION_CHARS),
        ),
        text_column(
            "expected",
            "Expected",
            lambda sample: clipped(" | ".join(sample.answers), TEXT_CHARS),
        ),
        *(
            text_column(
                f"m{at}",
                reading.names[variant],
                partial(page.wrote, variant),
                place=reading.places[variant],
                is_extra=at >= MOST_METHODS,
            )
            for at, variant in enumerate(shown)
        ),
    ]


def _from_first_difference(text: str, full: str) -> str:
    """The words behind those with which the full cache's text begins too; all where none differ."""
    own, other = text[:TITLE_CHARS].split(), full[:TITLE_CHARS].split()
    same = [*takewhile(lambda pair: pair[0] == pair[1], zip(own, other, strict=False))]
    return " ".join(own[len(same) :] or own)
