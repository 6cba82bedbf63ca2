"""The sampled texts of a run as a table: what each method wrote, and how often. No torch."""

from collections import Counter
from dataclasses import dataclass

from ckv_core.experiment.names import display_names
from ckv_core.experiment.runs import together
from ckv_core.experiment.sentences import budget_words, clipped, counted
from ckv_core.experiment.table import Cell, Column, Table, text_column
from ckv_core.records.events import RunResult
from ckv_core.records.records import SampledText, VariantResult
from ckv_core.records.run_request import Repeats

SHOWN_FIRST = 24
MOST_ROWS = 200
MOST_CHARS = 1_000  # of a text
WHOLE = "The result as JSON has them all, whole."


@dataclass(frozen=True, slots=True)
class SampledRow:
    """One text that a method wrote `times` times; `place` is that of the method's look."""

    name: str
    budget: str
    place: int
    written: SampledText
    times: int


_BUDGET: Column[SampledRow] = text_column("budget", "Budget", lambda row: row.budget)


def sampled_table(result: RunResult, repeats: str) -> Table[SampledRow] | None:
    """A row per method and text, the most frequent first; None where nothing was sampled.

    `repeats`: of the request; empty where it is not known.
    """
    rows = [
        SampledRow(name, budget, place, written, times)
        for name, budget, place, variant in _methods(result)
        for written, times in Counter(variant.sampled_texts).most_common()
    ]
    if not rows:
        return None
    each = max(len(variant.sampled_texts) for *_, variant in _methods(result))
    way = Repeats.parse(repeats)
    drawn = f"temperature {way.temperature:g}, top_p {way.top_p:g}, seed {way.seed}"
    notes = [f"{counted(each, 'text')} of each method{f': {drawn}' if way.count else ''}."]
    notes.append("Equal texts are one row.")
    if len(rows) > MOST_ROWS:
        notes.append(f"The first {MOST_ROWS} of {len(rows):,} rows. {WHOLE}")
    elif any(len(row.written.text) > MOST_CHARS for row in rows):
        notes.append(f"Texts are cut at {MOST_CHARS:,} characters. {WHOLE}")
    return Table(
        caption="Sampled texts",
        columns=[
            text_column("method", "Method", lambda row: row.name),
            *([_BUDGET] if result.kind == "sweep" else []),
            Column("times", "Times", lambda row: row.times, unit=f"of {each}"),
            text_column("text", "Text", _text),
        ],
        items=rows[:MOST_ROWS],
        file="sampled-texts.csv",
        note=" ".join(notes),
        places=[row.place for row in rows[:MOST_ROWS]],
        first=SHOWN_FIRST,
    )


def _methods(result: RunResult) -> list[tuple[str, str, int, VariantResult]]:
    """Name, budget, place of its look and record of each variant."""
    if result.kind == "sweep":
        rows = together([result]).rows
        return [(r.name, budget_words(r.identity.budget), r.place, r.variants[0]) for r in rows]
    named = enumerate(zip(display_names(result.variants), result.variants, strict=True))
    return [(name, "", place, variant) for place, (name, variant) in named]


def _text(row: SampledRow) -> Cell:
    written = row.written
    text = clipped(written.text, MOST_CHARS)
    if written.outcome == "none":
        return Cell(text, pieces=[(text, False)])
    return Cell(text, outcome=written.outcome, word=written.outcome)
