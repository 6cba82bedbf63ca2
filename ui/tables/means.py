"""Several runs as a page shows and saves them: the one table, and every mean as CSV."""

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

from ckv_core.analysis.aggregate import Several
from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.analysis.means_table import NOTE, columns_of
from ckv_core.analysis.pairs import COMPARED
from ckv_core.results.figures import FIGURES
from ui.looks.palette import Look, looks_of
from ui.tables.csv_text import Cell, csv_text
from ui.tables.data_table import column, data_table, table_row


def means_value(found: Several) -> dict[str, Any]:
    """Value of the DataTable: a row per method and budget."""
    columns, looks = columns_of(found), looks_by_place(found)
    read = {each.key: [each.read(member) for member in found.members] for each in columns}
    return data_table(
        "The runs together",
        [
            column(
                each.key,
                each.label,
                each.unit,
                align="left" if each.is_text else "right",
                help=each.definition,
                extra=each.is_extra,
            )
            for each in columns
        ],
        [
            table_row(
                {
                    key: {"text": cell.text, "value": cell.value}
                    for key, cells in read.items()
                    if (cell := cells[at])
                },
                looks[member.joined.place],
                mark,
            )
            for at, (member, mark) in enumerate(
                zip(found.members, found.regimes.marks, strict=True)
            )
        ],
        file="several-runs.csv",
        head=found.regimes.head,
        note=NOTE,
    )


def looks_by_place(found: Several) -> dict[int, Look]:
    """One look for the same settings at all budgets, by their place."""
    of_place = {each.joined.place: each.joined.variants[0] for each in found.members}
    return dict(zip(of_place, looks_of(of_place.values()), strict=True))


def means_csv(found: Several) -> str:
    """Every mean, then every difference of a pair: a line per variant and figure."""
    head = ("spec", "budget", "budget_unit", "figure", "label", "unit", "minus")
    ends = ("mean", "low", "high", "prompts", "lower", "higher", "level", "p")
    return csv_text((*head, *ends), [*_means(found), *_differences(found)])


def _means(found: Several) -> Iterator[tuple[Cell, ...]]:
    for member in found.members:
        for key, mean in member.figures.items():
            figure = FIGURES[key]
            words = (key, figure.mean_label, figure.unit_name, "")
            yield (*_named(member.joined), *words, *astuple(mean), *(None,) * 4)


def _differences(found: Several) -> Iterator[tuple[Cell, ...]]:
    for pair in found.pairs:
        for key, each in pair.figures.items():
            words = (key, COMPARED[key], FIGURES[key].unit_name, pair.other.spec)
            counts = (each.lower, each.higher, each.level, each.p)
            yield (*_named(pair.variant), *words, *astuple(each.mean), *counts)


def _named(variant: JoinedVariant) -> tuple[Cell, ...]:
    if (asked := variant.budget) is None:
        return variant.spec, "", ""
    return (
        variant.spec,
        int(asked.amount) if asked.amount.is_integer() else asked.amount,
        asked.unit,
    )
