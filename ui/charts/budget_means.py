"""Chart of several runs: a figure against the budget, one curve per method and alpha."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ckv_core.analysis.aggregate import BUDGET_UNITS, BudgetCurve, budget_curves, varied_units
from ckv_core.analysis.regimes import marked_name
from ckv_core.methods.parameters import Budget
from ckv_core.results.figures import FIGURES
from ckv_core.results.quantities import Figure
from ui.charts.chart import Chart, Control
from ui.charts.interval_bars import SHARE_TICKS, interval_bars, interval_subtitle
from ui.charts.layout import budget_axis, budget_line, empty_figure, new_figure
from ui.tables.aggregate import MAIN_FIGURES, AggregatedRuns, settings_text
from ui.tables.csv_text import csv_text

_FINAL_FIRST = sorted(MAIN_FIGURES, key=lambda figure: figure.key != "final")


def budget_figure(runs: AggregatedRuns, figure: Figure, unit: str) -> go.Figure:
    """Mean over prompts of one figure against the budget (the paper's Fig. 3c).

    Definition: a point is the mean over the prompts at the budget that the SPEC asks for, bars are
    its 95 % interval; no bar where n is too small. The axis is logarithmic; bars
    stand a little beside their point, in the order of the legend, so that each can be seen.
    """
    title = f"{figure.mean_label} against the budget"
    curves = budget_curves(runs.members)
    if unit not in varied_units(curves, figure.key):
        return empty_figure(title, "Not measured at two budgets of this unit.")
    points_of = [(each, each.values(figure.key)) for each in curves if each.unit == unit]
    drawn = [each for each in points_of if each[1]]
    means = [mean for _, points in drawn for _, mean in points]
    shown = new_figure(title, interval_subtitle(means), legend_rows=len(drawn))
    ticks = [budget.amount for _, points in drawn for budget, _ in points]
    bars_of = [
        interval_bars([m for _, m in ps], runs.looks[curve.place].color) for curve, ps in drawn
    ]
    factors = iter(_factors(sum(bars is not None for bars in bars_of), ticks))
    for (curve, points), bars in zip(drawn, bars_of, strict=True):
        budgets, values = [b.amount for b, _ in points], [mean.mean for _, mean in points]
        line = budget_line(
            runs.looks[curve.place], _name(runs, curve), budgets, values, figure.unit_name
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
    shown.update_yaxes(title_text=figure.unit_name, rangemode="tozero")
    if figure.is_share:
        shown.update_yaxes(tickformat=SHARE_TICKS)
    return shown


def budgets_csv(runs: AggregatedRuns) -> str:
    """Data of `budget_figure`: one line per figure, curve and budget."""
    return csv_text(
        ("curve", "budget", "budget_unit", "figure", "unit", "mean", "low", "high", "prompts"),
        (
            (
                curve.spec,
                _amount(budget),
                curve.unit,
                figure.mean_label,
                figure.unit_name,
                *astuple(mean),
            )
            for figure, curve in _offered(runs)
            for budget, mean in curve.values(figure.key)
        ),
    )


def _name(runs: AggregatedRuns, curve: BudgetCurve) -> str:
    name = ", ".join(filter(None, (curve.label, settings_text(curve.spec, curve.alpha))))
    return marked_name(name, runs.marks[curve.place])


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


def _offered(runs: AggregatedRuns) -> Iterator[tuple[Figure, BudgetCurve]]:
    """Every figure with every curve that is drawn of it."""
    curves = budget_curves(runs.members)
    for figure in _FINAL_FIRST:
        units = varied_units(curves, figure.key)
        yield from ((figure, curve) for curve in curves if curve.unit in units)


def _controls(runs: AggregatedRuns) -> list[Control]:
    offered = list(_offered(runs))
    figures = {figure.key: figure.mean_label for figure, _ in offered}
    units = [unit for unit in BUDGET_UNITS if any(curve.unit == unit for _, curve in offered)]
    return [
        Control("quantity", "Quantity", list(figures.items())),
        Control("unit", "Budgets in", [(unit, BUDGET_UNITS[unit]) for unit in units]),
    ]


BUDGET_CHART: Chart[AggregatedRuns] = Chart(
    name="budget",
    title="Against the budget",
    csv="budgets",
    controls=_controls,
    has_data=lambda runs: next(_offered(runs), None) is not None,
    draw=lambda runs, chosen: budget_figure(runs, FIGURES[chosen["quantity"]], chosen["unit"]),
)
