"""The one table of points and the budgets of equal quality as the DataTable has them. No Gradio."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ckv_core.experiment.points import POINT_METRICS, Points, Row
from ckv_core.experiment.points_table import NOTE, columns_of, csv_rows
from ckv_core.experiment.savings import Saving
from ui.looks.palette import Look, looks_of
from ui.tables.csv_text import csv_text
from ui.tables.data_table import column, data_table, table_row, text_column

SAVINGS_NOTE = (
    "The budget at which the method is as good as the other at its budget and stays so, linear "
    "between the budgets tried, as in the paper's Figure 1."
)


def points_value(
    points: Points,
    caption: str,
    file: str,
    *,
    note: str = NOTE,
    link: Callable[[Row], str] | None = None,
) -> dict[str, Any]:
    """Value of the DataTable: a row per method and budget; `link` is where a score leads to."""
    columns, looks = columns_of(points), looks_by_place(points)
    rows = []
    for row, mark in zip(points.rows, points.regimes.marks, strict=True):
        cells = {
            each.key: {"text": cell.text, "value": cell.value}
            for each in columns
            if (cell := each.read(row))
        }
        if link and "score" in cells:
            cells["score"] |= {"href": link(row)}
        rows.append(table_row(cells, looks[row.place], mark))
    return data_table(
        caption,
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
        rows,
        file=file,
        head=points.regimes.head,
        note=note,
        empty="The points appear here as they are measured.",
    )


def looks_by_place(points: Points) -> dict[int, Look]:
    """One look for the same settings at all budgets, by their place."""
    of_place = {row.place: row.variants[0] for row in reversed(points.rows)}
    places = sorted(of_place)
    return dict(zip(places, looks_of(of_place[place] for place in places), strict=True))


def points_csv(points: Points) -> str:
    """Every mean, then every difference of a pair: a line per row and metric."""
    return csv_text(*csv_rows(points))


def savings_value(
    points: Points,
    rows: Sequence[Mapping[str, Saving]],
    keys: Sequence[str],
    *,
    file: str,
    note: str = SAVINGS_NOTE,
    empty: str = "",
) -> dict[str, Any]:
    """Value of the DataTable of budgets of equal quality: a column per metric."""
    looks, marks = looks_by_place(points), points.marks
    shown = []
    for savings in rows:
        first = next(iter(savings.values()))
        own, target = first.curve.first, first.target.first
        cells: dict[str, Any] = {
            "method": {"text": own.name},
            "matches": {
                "text": f"{target.name} at {first.target_budget}",
                "value": first.target_budget.amount,
            },
            **({"n": {"text": f"{first.n:,}", "value": first.n}} if points.n > 1 else {}),
        }
        for key, saving in savings.items():
            ends = f" ({saving.interval})" if saving.interval else ""
            cells[key] = {"text": f"{saving.full_text}{ends}", "value": saving.match.budget}
        shown.append(table_row(cells, looks[own.place], marks[own.place]))
    return data_table(
        "Budget needed for equal quality",
        [
            text_column("method", "Method"),
            text_column("matches", "Matches"),
            *(column(key, f"Needs, by {POINT_METRICS[key].label}", "budget") for key in keys),
            *([column("n", "n", "samples")] if points.n > 1 else []),
        ],
        shown,
        file=file,
        note=note,
        head=points.regimes.head,
        empty=empty,
    )
