"""Negatives: samples that the full cache answers and a method does not. No torch."""

from collections.abc import Callable
from dataclasses import dataclass

from ckv_core.experiment.reading import Reading
from ckv_core.experiment.runs import FULL_POINT
from ckv_core.experiment.sentences import budget_words, clipped
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.experiment.table import Cell, Table, text_column
from ckv_core.records.run_request import Point

MOST = 500
TEXT_CHARS = 60
TITLE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Negative:
    """One flip from right to wrong.

    Attributes:
        point: the variant, and the budget at which it lost the answer.
        kept: budgets of the same variant at which it answers the same sample.
    """

    sample: Sample
    point: Point
    full: SampleResult
    result: SampleResult
    kept: tuple[str, ...]


def negatives(reading: Reading) -> list[Negative]:
    """Where the full cache has the whole score and a variant misses, in the order of results.

    A cut or failed text is neither right nor wrong, and no negative.
    """
    known, results = {each.id: each for each in reading.samples}, reading.results
    full = {each.sample: each for each in results if each.variant == FULL_POINT.variant}
    right: dict[tuple[str, str], list[str]] = {}
    for each in results:
        if each.score == 1 and each.budget:
            right.setdefault((each.sample, each.variant), []).append(each.budget)
    return [
        Negative(
            known[each.sample],
            Point(each.variant, each.budget),
            full[each.sample],
            each,
            tuple(right.get((each.sample, each.variant), ())),
        )
        for each in results
        if each.budget is not None
        and each.outcome == "missed"
        and each.sample in known
        and each.sample in full
        and full[each.sample].score == 1
    ]


def negatives_table(
    reading: Reading, link: Callable[[Negative], str] = lambda _: ""
) -> Table[Negative]:
    """A row a flip; `link` leads to its sample with the same methods and budget."""

    def sample(each: Negative) -> Cell:
        return Cell(each.sample.id, href=link(each))

    def written(each: Negative) -> Cell:
        text = each.result.text
        return Cell(clipped(text, TEXT_CHARS), title=clipped(text, TITLE_CHARS), outcome="missed")

    found = negatives(reading)
    return Table(
        caption="Lost answers",
        columns=[
            text_column("sample", "Sample", sample),
            text_column("method", "Method", lambda each: reading.names[each.point.variant]),
            text_column("budget", "Budget", lambda each: budget_words(each.point.budget)),
            text_column("question", "Question", lambda each: clipped(each.sample.question, 80)),
            text_column(
                "expected", "Expected", lambda each: clipped(" | ".join(each.sample.answers), 40)
            ),
            text_column("written", "Written", written),
            text_column(
                "evidence",
                "Evidence",
                lambda each: clipped(" ".join(each.sample.evidence), TITLE_CHARS),
            ),
            text_column(
                "kept", "Answered at", lambda each: ", ".join(map(budget_words, each.kept))
            ),
        ],
        items=found[:MOST],
        file="study-negatives.csv",
        note="Right with the full cache, wrong with the method. Open a sample to see which entries "
        f"of its evidence are missing, and why it was lost. {len(found):,} in all.",
        empty="No method misses what the full cache answers so far.",
        places=[reading.places[each.point.variant] for each in found[:MOST]],
        first=8,
    )
