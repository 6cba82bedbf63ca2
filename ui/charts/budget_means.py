"""Chart of several runs: a figure against the budget, one curve per method and alpha."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ckv_core.analysis.against_budget import BUDGET_UNITS, BudgetCurve, budget_curves, varied_units
from ckv_core.analysis.regimes import marked_name
from ckv_core.methods.parameters import Budget
from ui.charts.chart import Chart, Choices, Control
from ui.charts.interval_bars import SHARE_TICKS, interval_bars, interval_subtitle
from ui.charts.layout import empty_figure, new_figure
from ui.charts.lines import budget_axis, budget_line
from ui.tables.aggregate import MAIN_FIGURES, Figure, SeveralRuns, settings_text
from ui.tables.csv_text import csv_text

_FINAL_FIRST = sorted(MAIN_FIGURES, key=lambda figure: figure.key != "final")


def budget_figure(found: SeveralRuns, figure: Figure, unit: str) -> go.Figure:
    """Mean over prompts of one figure against the budget (the paper's Fig. 3c).

    Definition: a point is the mean over the prompts at the budget that the SPEC asks for, bars are
    its BCa bootstrap interval, 95 %; no bar where n is too small. The axis is logarithmic; bars
    stand a little beside their point, in the order of the legend, so that each can be seen.
    """
    title = f"{figure.label} against the budget"
    curves = budget_curves(found.members)
    if unit not in varied_units(curves, figure.key):
        return empty_figure(title, "Not measured at two budgets of this unit.")
    points_of = [(each, each.values(figure.key)) for each in curves if each.unit == unit]
    drawn = [each for each in points_of if each[1]]
    means = [mean for _, points in drawn for _, mean in points]
    shown = new_figure(title, interval_subtitle(means), legend_rows=len(drawn))
    ticks = [budget.amount for _, points in drawn for budget, _ in points]
    bars_of = [
        interval_bars([m for _, m in ps], found.looks[curve.place].color) for curve, ps in drawn
    ]
    factors = iter(_factors(sum(bars is not None for bars in bars_of), ticks))
    for (curve, points), bars in zip(drawn, bars_of, strict=True):
        budgets, values = [b.amount for b, _ in points], [mean.mean for _, mean in points]
        line = budget_line(
            found.looks[curve.place], _name(found, curve), budgets, values, figure.unit
        )
        line.update(
            legendgroup=str(curve.place),
            customdata=[mean.n for _, mean in points],
            hovertemplate=f"{line.hovertemplate}, n = %{{customdata}}",
        )
        shown.add_trace(line)
        if bars:
            shown.add_trace(_bar_trace(line, bars, next(factors)))
    budget_axis(shown, ticks, BUDGET_UNITS[unit])
    shown.update_layout(legend={"tracegroupgap": 0})
    shown.update_yaxes(title_text=figure.unit, rangemode="tozero")
    if figure.is_share:
        shown.update_yaxes(tickformat=SHARE_TICKS)
    return shown


def budgets_csv(found: SeveralRuns) -> str:
    """Data of `budget_figure`: one line per figure, curve and budget."""
    return csv_text(
        ("curve", "budget", "budget_unit", "figure", "unit", "mean", "low", "high", "prompts"),
        (
            (curve.spec, _amount(budget), curve.unit, figure.label, figure.unit, *astuple(mean))
            for figure, curve in _offered(found)
            for budget, mean in curve.values(figure.key)
        ),
    )


def _name(found: SeveralRuns, curve: BudgetCurve) -> str:
    settings = settings_text(curve.spec, curve.alpha)
    name = f"{curve.label}, {settings}" if settings else curve.label
    return marked_name(name, found.marks[curve.place])


def _amount(budget: Budget) -> int | float:
    """As it was written: 64 and not 64.0."""
    return int(budget.amount) if budget.amount.is_integer() else budget.amount


def _bar_trace(line: go.Scatter, bars: dict[str, Any], factor: float) -> go.Scatter:
    """The intervals of a curve, moved sideways; the curve itself must not be, as it falls."""
    return go.Scatter(
        x=line.x * factor,
        y=line.y,
        error_y=bars,
        mode="markers",
        marker={**line.marker.to_plotly_json(), "size": 5},
        legendgroup=line.legendgroup,
        showlegend=False,
        hoverinfo="skip",
    )


def _factors(curves: int, budgets: Sequence[float]) -> NDArray[np.float64]:
    """By what to multiply the budgets of each curve's bars: by under 1/8 of the smallest gap."""
    gaps = np.diff(np.log(sorted(set(budgets))))
    gap = min(gaps.min(), gaps.sum() / 2)  # of two budgets the gap is all the axis
    offsets = np.arange(curves) - (curves - 1) / 2
    return np.asarray(np.exp(offsets * gap / (4 * max(curves, 4))), np.float64)


def _offered(found: SeveralRuns) -> Iterator[tuple[Figure, BudgetCurve]]:
    """Every figure with every curve that is drawn of it."""
    curves = budget_curves(found.members)
    for figure in _FINAL_FIRST:
        units = varied_units(curves, figure.key)
        yield from ((figure, curve) for curve in curves if curve.unit in units)


def _controls(found: SeveralRuns) -> list[Control]:
    offered = list(_offered(found))
    figures = {figure.key: figure.label for figure, _ in offered}
    units = [unit for unit in BUDGET_UNITS if any(curve.unit == unit for _, curve in offered)]
    return [
        Control("quantity", "Quantity", list(figures.items())),
        Control("unit", "Budgets in", [(unit, BUDGET_UNITS[unit]) for unit in units]),
    ]


def _draw(found: SeveralRuns, chosen: Choices) -> go.Figure:
    figure = next(each for each in MAIN_FIGURES if each.key == chosen["quantity"])
    return budget_figure(found, figure, chosen["unit"])


BUDGET_CHART: Chart[SeveralRuns] = Chart(
    name="budget",
    title="Against the budget",
    csv="budgets",
    controls=_controls,
    has_data=lambda found: next(_offered(found), None) is not None,
    draw=_draw,
)
