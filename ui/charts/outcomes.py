"""Yes or no of every point of a sweep, as marks: nothing lies between two points."""

import html
from collections.abc import Iterable

import numpy as np
import plotly.graph_objects as go

from ckv_core.analysis.sweep import AXES, budget_unit, curves
from ckv_core.results.events import RunResult
from ckv_core.results.quantities import Figure
from ckv_core.results.records import VariantResult
from ui.charts.layout import BAR_PX, budget_axis, new_figure
from ui.tables.sweep import curve_looks, ranked_curves

# Told apart without colour: filled, a cross, a bar.
_MARKS = {"yes": "circle", "no": "x-thin-open", "cut": "line-ew-open"}
AROUND_PX = 130


def outcome_figure(result: RunResult, figure: Figure) -> go.Figure:
    """One row per line of the sweep, one mark per budget.

    Definition: see docs/definitions.md for the figure; cut means that the limit of new tokens
    ended the text before the answer. n = one prompt.
    """
    full = next((v for v in result.variants if v.method == "full"), None)
    own = _word(figure, full) if full else None
    told = f"; full cache: {own}" if own else ""
    drawn = new_figure(
        f"{figure.label} against the budget",
        f"● yes, ✕ no, – cut at the limit{told}",  # noqa: RUF001
    )
    lines = list(zip(curve_looks(result), curves(result), strict=True))
    names = [html.escape(name, quote=False) for name in ranked_curves(result)]
    for row, (look, curve) in enumerate(lines):
        points = [(b, w) for b, i in curve.points if (w := _word(figure, result.variants[i]))]
        if points:
            budgets, words = zip(*points, strict=True)
            drawn.add_trace(
                go.Scatter(
                    x=np.array(budgets, np.float64),
                    y=np.full(len(points), row, np.int16),
                    name=names[row],
                    mode="markers",
                    marker={
                        "color": look.color,
                        "size": 12,
                        "symbol": [_MARKS[word] for word in words],
                        "line": {"color": look.color, "width": 3},
                    },
                    customdata=words,
                    hovertemplate="budget %{x}: %{customdata}",
                )
            )
    budget_axis(drawn, _budgets(result), AXES[budget_unit(result)])
    drawn.update_yaxes(
        tickvals=np.arange(len(names), dtype=np.int16),
        ticktext=[name.replace(", ", ",<br>", 1) for name in names],
        range=[len(names) - 0.5, -0.5],
    )
    drawn.update_layout(showlegend=False, height=AROUND_PX + BAR_PX * len(names))
    return drawn


def _word(figure: Figure, variant: VariantResult) -> str | None:
    if figure.key == "answer" and variant.outcome == "cut":
        return "cut"
    value = figure.read(variant)
    return None if value is None else "yes" if value else "no"


def _budgets(result: RunResult) -> Iterable[int]:
    return (budget for curve in curves(result) for budget, _ in curve.points)
