"""The samples of a study: all, or those of one cell of its tables, each a way into Compare."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ckv_core.errors import ConfigError
from ckv_core.experiment.study import FULL, Point, Sample, SampleResult, Study
from ckv_core.records.run_request import RunRequest
from ui.tables.data_table import Cells, Column, column, table_row, text_column
from ui.tables.study import StudyReading, points_cell, table_of

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

    def words(self, reading: StudyReading) -> str:
        at = f" at {self.point.budget}" if self.point.budget else ""
        tags = [f"{name} {value or 'none'}" for name, value in self.tags.items()]
        return ", ".join([f"{reading.names[self.point.variant]}{at}", *tags])

    def holds(self, sample: Sample) -> bool:
        return all(_is(sample.tags.get(name, ""), text) for name, text in self.tags.items())


def read_cell(reading: StudyReading, parameters: Mapping[str, str]) -> Cell | None:
    """The cell that an address names, which may hold anything; None for none that the study has."""
    point = Point(parameters.get("variant", ""), parameters.get("budget") or None)
    cell = Cell(point, {name: parameters[name] for name in TAGS if name in parameters})
    known = point in reading.study.points() and any(map(cell.holds, reading.samples))
    return cell if known else None


def samples_table(reading: StudyReading, cell: Cell | None = None) -> dict[str, Any]:
    """Value of the DataTable of samples, those where methods disagree most first.

    Of one cell its samples alone, with what it scored and wrote.
    """
    of_sample: dict[str, list[SampleResult]] = {}
    for result in reading.results:
        of_sample.setdefault(result.sample, []).append(result)
    rows = [
        table_row(_cells(reading, sample, of_sample.get(sample.id, []), cell))
        for sample in reading.samples
        if cell is None or cell.holds(sample)
    ]
    rows.sort(key=lambda row: row["cells"]["spread"]["value"] or 0.0, reverse=True)
    cut = ""
    if len(rows) > MOST_SAMPLES:
        cut = f" The first {MOST_SAMPLES} of {len(rows):,}; the CSV of all results has the rest."
    note = (
        "Disagreement: best minus worst score among methods and budgets, the full cache apart. "
        f"Failed results are tried again by Resume.{cut}"
    )
    table = table_of(
        reading, "Samples", _columns(reading, cell), rows[:MOST_SAMPLES], note, "samples"
    )
    return table | {"head": ""}


def sample_request(
    study: Study, samples: Iterable[Sample], sample: str, budget: str = ""
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
        defaults={"budget": budget if budget in budgets else budgets[0]},
    )


def _is(value: object, text: str) -> bool:
    """Whether an address means this tag: 1024 is 1024.0."""
    try:
        return float(str(value)) == float(text)
    except ValueError:
        return str(value) == text


def _columns(reading: StudyReading, cell: Cell | None) -> list[Column]:
    own: list[Column] = []
    if cell is not None:
        score = column("score", cell.words(reading), "points")
        own = [score, text_column("text", "It wrote")]
    return [
        text_column("id", "Sample", "opens in Compare"),
        text_column("question", "Question"),
        *own,
        column("full", "Full cache", "points"),
        text_column("best", "Best point"),
        text_column("worst", "Worst point"),
        column("spread", "Disagreement", "points"),
        text_column("failed", "Failed"),
    ]


def _cells(
    reading: StudyReading, sample: Sample, results: Sequence[SampleResult], cell: Cell | None
) -> Cells:
    scored = [r for r in results if r.variant != FULL and r.score is not None]
    scored.sort(key=lambda r: r.score or 0.0)
    full = next((r.score for r in results if r.variant == FULL), None)
    spread = (scored[-1].score or 0.0) - (scored[0].score or 0.0) if scored else None
    ends = [_point_text(reading, scored[at]) for at in (-1, 0)] if spread else ["", ""]
    reasons = list(dict.fromkeys(r.reason for r in results if r.state == "failed"))
    failed = sum(r.state == "failed" for r in results)
    parameters = {"study": reading.slug, "sample": sample.id}
    own: Cells = {}
    if cell is not None:
        parameters |= {"budget": cell.point.budget} if cell.point.budget else {}
        point = (cell.point.variant, cell.point.budget)
        result = next((r for r in results if (r.variant, r.budget) == point), None)
        own = {
            "score": points_cell(result.score if result else None),
            "text": {"text": _cut(result.text if result else "", TEXT_CHARS)},
        }
    return {
        "id": {"text": sample.id, "href": "/?" + urlencode(parameters)},
        "question": {"text": _cut(sample.question, QUESTION_CHARS)},
        **own,
        "full": points_cell(full),
        "best": {"text": ends[0]},
        "worst": {"text": ends[1]},
        "spread": points_cell(spread),
        "failed": {"text": f"{failed}: {' '.join(reasons)}" if failed else "", "value": failed},
    }


def _point_text(reading: StudyReading, result: SampleResult) -> str:
    return f"{reading.names[result.variant]} at {result.budget}: {100 * (result.score or 0):.0f}"


def _cut(text: str, most: int) -> str:
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most else f"{words[:most]}…"
