"""Tables of a sweep: all points, and the budgets at which methods are equally good."""

from typing import Any

from ckv_core.events import RunResult
from ui.sweep_data import METRICS, Line, Metric, lines_of, matching_budget, values_of

Cell = dict[str, Any]
MATCHED = ("final", "head", "kl")
SAVINGS_NOTE = (
    "Read off by interpolation, linear in the logarithm of the budget; a cell says so where the "
    "answer lies outside the budgets tried. One prompt."
)


def points_table(result: RunResult) -> dict[str, Any]:
    """Value of the DataTable of all points whose cache is built."""
    metrics = [m for m in METRICS.values() if _is_known(result, m)]
    columns = [
        _column("method", "Method and alpha", align="left"),
        _column("budget", "Budget", "entries per KV head"),
        *(_column(m.key, m.label, m.unit) for m in metrics),
        _column("spec", "SPEC", align="left"),
    ]
    rows = []
    for at, line in enumerate(lines_of(result)):
        for budget, index in line.points:
            variant = result.variants[index]
            cells = {
                "method": _text(line.name),
                "budget": _figure(float(budget), f"{budget:,}"),
                "spec": _text(variant.spec),
            }
            for metric in metrics:
                cells[metric.key] = _value(metric.read(variant))
            rows.append({"marker": at, "cells": cells})
    return {
        "caption": "All points of the sweep",
        "columns": columns,
        "rows": rows,
        "note": "One prompt; L1 and KL at the first decoding step, 0 for the full cache.",
        "file": "sweep-points.csv",
        "empty": "The points appear here as they are measured.",
    }


def savings_table(result: RunResult, reference: object) -> dict[str, Any]:
    """Value of the DataTable that says which budget each line needs to match another's quality.

    Args:
        result: the sweep.
        reference: index of the line whose points are matched; a client may send anything.
    """
    lines = lines_of(result)
    known = isinstance(reference, int) and 0 <= reference < len(lines)
    rows = []
    if known and isinstance(reference, int):
        rows = [
            _savings_row(result, at, line, lines[reference], budget)
            for at, line in enumerate(lines)
            if at != reference
            for budget, _ in lines[reference].points
        ]
    return {
        "caption": "Budget needed for equal quality",
        "columns": [
            _column("method", "Method and alpha", align="left"),
            _column("matches", "Matches", align="left"),
            *(_column(key, f"Needs, by {METRICS[key].label}", "entries") for key in MATCHED),
        ],
        "rows": rows,
        "note": SAVINGS_NOTE,
        "file": "sweep-budgets.csv",
        "empty": "One more method or alpha is needed to compare budgets.",
    }


def needed_text(line_budgets: list[int], needed: float | None, budget: int) -> str:
    """`171, 33 % less`; says so where the answer lies outside the budgets tried.

    Args:
        line_budgets: budgets of the line that shall match, rising; may be empty.
        needed: result of `matching_budget`.
        budget: of the point that is matched.
    """
    if not line_budgets:
        return ""
    if needed is None:
        return f"over {line_budgets[-1]:,}: outside the range"
    if needed <= line_budgets[0]:
        return f"{line_budgets[0]:,} or less: outside the range"
    change = round(100 * (needed / budget - 1))
    if change == 0:
        return f"{needed:,.0f}, the same"
    return f"{needed:,.0f}, {abs(change)} % {'less' if change < 0 else 'more'}"


def _savings_row(
    result: RunResult, at: int, line: Line, reference: Line, budget: int
) -> dict[str, Any]:
    cells: dict[str, Cell] = {
        "method": _text(line.name),
        "matches": {"text": f"{reference.name} at {budget:,}", "value": budget},
    }
    for key in MATCHED:
        targets = dict(zip(*values_of(result, reference, METRICS[key]), strict=True))
        budgets, values = values_of(result, line, METRICS[key])
        if budget not in targets or not budgets:
            cells[key] = _text("")
            continue
        needed = matching_budget(budgets, values, targets[budget])
        inside = needed is not None and needed > budgets[0]
        cells[key] = {
            "text": needed_text(budgets, needed, budget),
            "value": needed if inside else None,
        }
    return {"marker": at, "cells": cells}


def _is_known(result: RunResult, metric: Metric) -> bool:
    return any(metric.read(v) is not None for v in result.variants if v.method != "full")


def _column(key: str, label: str, unit: str = "", align: str = "right") -> dict[str, str]:
    return {"key": key, "label": label, "unit": unit, "align": align}


def _text(text: str) -> Cell:
    return {"text": text, "value": None}


def _value(value: float | None) -> Cell:
    return _text("") if value is None else _figure(value, f"{value:,.4g}")


def _figure(value: float, text: str) -> Cell:
    return {"text": text, "value": value}
