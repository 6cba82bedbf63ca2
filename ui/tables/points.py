"""Tables of runs of one sample as the DataTable has them, and how the settings in them look."""

from typing import Any

from ckv_core.experiment.points import Points
from ckv_core.experiment.points_table import csv_rows
from ckv_core.experiment.runs import together
from ckv_core.experiment.sampled import sampled_table
from ckv_core.experiment.summary import metric_rows, summary_table
from ckv_core.experiment.table import Item, Table
from ckv_core.records.events import RunResult
from ui.looks.palette import Look, looks_of
from ui.tables.csv_text import csv_text


def looks_by_place(points: Points) -> dict[int, Look]:
    """One look for the same settings at all budgets, by their place."""
    of_place = {row.place: row.variants[0] for row in reversed(points.rows)}
    places = sorted(of_place)
    return dict(zip(places, looks_of(of_place[place] for place in places), strict=True))


def look_values(points: Points) -> dict[int, Any]:
    """The same as the components have them."""
    return {place: look.value for place, look in looks_by_place(points).items()}


def summary_value(result: RunResult, *, ended: bool = False) -> dict[str, Any] | None:
    """Value of the table of a run; None until its variants are known, `ended` as it has it."""
    table = summary_table(result, ended=ended)
    looks = enumerate(look.value for look in looks_of(result.variants))
    return table.value(dict(looks)) if table else None


def sampled_value(result: RunResult, repeats: str) -> dict[str, Any] | None:
    """Value of the table of a run's sampled texts; None where there are none."""
    table = sampled_table(result, repeats)
    if table is None or result.kind == "sweep":
        return sweep_value(result, table) if table else None
    return table.value(dict(enumerate(look.value for look in looks_of(result.variants))))


def sweep_value(result: RunResult, table: Table[Item]) -> dict[str, Any]:
    """Value of a table of the points of one run."""
    return table.value(look_values(together([result])))


def summary_csv(result: RunResult) -> str:
    """One line per variant."""
    return csv_text(*metric_rows(result))


def points_csv(points: Points) -> str:
    """Every mean, then every difference of a pair: a line per row and metric."""
    return csv_text(*csv_rows(points))
