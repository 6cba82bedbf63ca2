"""Chart of several runs: a figure against the budget, one curve per method and alpha."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ckv_core.analysis.aggregate import (
    BUDGET_UNITS,
    BudgetCurve,
    Several,
    budget_curves,
    varied_units,
)
from ckv_core.analysis.names import curve_name
from ckv_core.analysis.regimes import marked_name
from ckv_core.experiment.stats import MIN_PROMPTS, Interval
from ckv_core.results.figures import FIGURES, figures_in
from ckv_core.results.quantities import Figure
from ui.charts.chart import Chart, Control
from ui.charts.interval_bars import has_bar, interval_bars
from ui.charts.layout import budget_axis, budget_line, empty_figure, new_figure
from ui.tables.means import looks_by_place

SHARE_TICKS = ".3~%"  # as many digits as it takes to tell neighbours apart


def budget_figure(found: Several, figure: Figure, unit: str) -> go.Figure:
    """Mean over prompts of one figure against the budget (the paper's Fig. 3c).

    Definition: a point is the mean over the prompts at the budget that the SPEC asks for, bars are
    its 95 % interval; no bar where n is too small. The axis is logarithmic; bars
    stand a little beside their point, in the order of the legend, so that each can be seen.
    """
    title = f"{figure.mean_label} against the budget"
    curves, looks = budget_curves(found.members), looks_by_place(found)
    if unit not in varied_units(curves, figure.key):
        return empty_figure(title, "Not measured at two budgets of this unit.")
    points_of = [(each, each.values(figure.key)) for each in curves if each.unit == unit]
    drawn = [each for each in points_of if each[1]]
    means = [mean for _, points in drawn for _, mean in points]
    shown = new_figure(title, _subtitle(means), legend_rows=len(drawn))
    ticks = [budget.amount for _, points in drawn for budget, _ in points]
    bars_of = [interval_bars([m for _, m in ps], looks[curve.place].color) for curve, ps in drawn]
    factors = iter(_factors(sum(bars is not None for bars in bars_of), ticks))
    for (curve, points), bars in zip(drawn, bars_of, strict=True):
        budgets, values = [b.amount for b, _ in points], [mean.mean for _, mean in points]
        line = budget_line(
            looks[curve.place], _name(found, curve), budgets, values, figure.unit_name
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


def _subtitle(intervals: Sequence[Interval]) -> str:
    """What the points and bars are, and n; of figures that only some prompts have, n's range."""
    counts = sorted({each.n for each in intervals})
    most = f" to {counts[-1]}" if len(counts) > 1 else ""
    n = f"n = {counts[0]}{most} prompt{'' if counts[-1] == 1 else 's'}"
    bars = [has_bar(each) for each in intervals]
    if all(bars):
        return f"mean and 95 % interval, {n}"
    if any(bars):
        return f"mean; 95 % interval where n is at least {MIN_PROMPTS}; {n}"
    return f"mean; no interval of so few or equal values, {n}"


def _name(found: Several, curve: BudgetCurve) -> str:
    return marked_name(curve_name(curve.label, curve.alpha, curve.spec), found.marks[curve.place])


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


def _offered(found: Several) -> Iterator[tuple[Figure, BudgetCurve]]:
    """Every figure with every curve that is drawn of it."""
    curves = budget_curves(found.members)
    for figure in figures_in("means").values():
        units = varied_units(curves, figure.key)
        yield from ((figure, curve) for curve in curves if curve.unit in units)


def _controls(found: Several) -> list[Control]:
    offered = list(_offered(found))
    figures = {figure.key: figure.mean_label for figure, _ in offered}
    units = [unit for unit in BUDGET_UNITS if any(curve.unit == unit for _, curve in offered)]
    return [
        Control("quantity", "Quantity", list(figures.items())),
        Control("unit", "Budgets in", [(unit, BUDGET_UNITS[unit]) for unit in units]),
    ]


BUDGET_CHART: Chart[Several] = Chart(
    name="budget",
    title="Against the budget",
    csv="means",
    controls=_controls,
    has_data=lambda found: next(_offered(found), None) is not None,
    draw=lambda found, chosen: budget_figure(found, FIGURES[chosen["quantity"]], chosen["unit"]),
)
