"""Charts of a sweep: a quantity against the budget, and the best alpha per layer and per head."""

import html

import numpy as np
import plotly.graph_objects as go

from ckv_core.analysis.rounding import floor_by_figure, short
from ckv_core.analysis.sweep import (
    AXES,
    ORACLES,
    SWEPT,
    AlphaOptimum,
    OracleSet,
    alpha_optima,
    budget_unit,
    curves,
    oracle_sets,
    shown_figures,
)
from ckv_core.results.events import RunResult
from ckv_core.results.quantities import Figure
from ui.charts.chart import Chart, Choices, Control
from ui.charts.heads import alpha_grid
from ui.charts.layers import FLOOR_LOOK, ORACLE_LOOKS
from ui.charts.layout import TEXT_COLOR, budget_axis, budget_line, new_figure
from ui.charts.outcomes import outcome_figure
from ui.looks.palette import FULL_LOOK, look_of
from ui.tables.sweep import curve_looks, optimum_name, oracle_name, ranked_curves


def curve_figure(result: RunResult, metric: Figure, oracles: OracleSet | None = None) -> go.Figure:
    """One quantity against the budget, one line per method and alpha; the full cache dotted.

    Definition: see docs/definitions.md for each quantity; budgets are resolved tokens, or KiB where
    all were asked in MiB; the axis is logarithmic. n = one prompt; L1 and KL at the first decoding
    step. Oracles, dashed, choose by the true decode attention, which no method sees: they are
    limits, not rivals.
    """
    named = zip(curve_looks(result), ranked_curves(result), curves(result), strict=True)
    drawn = [(look, name, curve.values(result, metric)) for look, name, curve in named]
    drawn = [each for each in drawn if each[2]]
    closer = metric.better or ""
    subtitle = f"One prompt; {closer} is closer to the full cache"
    floor = floor_by_figure(result.floor).get(metric.key)
    if floor is not None:
        subtitle = f"One prompt; {closer} is closer; dashed grey: rounding floor, {short(floor)}"
    if metric.better is None:
        subtitle = "One prompt; heads that meet assumption 1. It says nothing of quality"
    if oracles is not None:
        subtitle = f"{closer.capitalize()} is closer; oracle budgets: {oracle_name(oracles)}"
    figure = new_figure(
        f"{metric.label} against the budget",
        html.escape(subtitle, quote=False),
        legend_rows=len(drawn) + (len(oracles.values) if oracles else 0),
    )
    for look, name, points in drawn:
        budgets, values = zip(*points, strict=True)
        figure.add_trace(budget_line(look, name, budgets, values, metric.unit_name))
    if oracles is not None:
        _add_oracles(figure, oracles)
    _add_reference(figure, result, metric)
    if floor is not None:  # below it a point, or a difference, may be nothing but rounding
        figure.add_hline(y=floor, line={**FLOOR_LOOK.line(), "dash": "dash"})
    ticks = [budget for _, _, points in drawn for budget, _ in points]
    budget_axis(figure, ticks, AXES[budget_unit(result)])
    figure.update_yaxes(title_text=metric.unit_name, rangemode="tozero")
    return figure


def alpha_layer_figure(optimum: AlphaOptimum) -> go.Figure:
    """Which alpha of those tried moves each layer's heads least; dotted: the best fixed one.

    Definition: argmin over alpha of the layer's summed isolated head L1. n = layers of one
    prompt; a layer not evicted has none.
    """
    layers = len(optimum.layer_alpha)
    known, look = int((~np.isnan(optimum.layer_alpha)).sum()), look_of(optimum.spec)
    figure = new_figure(
        "Best alpha of each layer",
        f"Of {len(optimum.alphas)} alphas; n = {known} layers; dotted: best fixed, "
        f"{optimum.best_fixed:g}",
    )
    figure.add_trace(
        go.Scatter(
            x=np.arange(layers, dtype=np.int16),
            y=optimum.layer_alpha,
            mode="lines+markers",
            line={**look.line(), "dash": "solid", "shape": "hvh"},
            marker=look.marker(7),
            hovertemplate="layer %{x}: alpha %{y:g}<extra></extra>",
        )
    )
    figure.add_hline(y=optimum.best_fixed, line={"color": TEXT_COLOR, "dash": "dot", "width": 2})
    figure.update_xaxes(title_text="layer")
    figure.update_yaxes(title_text="alpha", tickvals=list(optimum.alphas))
    figure.update_layout(showlegend=False)
    return figure


def alpha_head_figure(optimum: AlphaOptimum) -> go.Figure:
    """Which alpha of those tried moves each KV head least, as a grid.

    Definition: argmin over alpha of isolated head L1, summed over the query heads that share the
    KV head's kept set. n = one prompt. Layers not evicted are grey.
    """
    heads = int((~np.isnan(optimum.head_alpha)).sum())
    figure = new_figure(
        f"A best alpha per KV head gains {optimum.head_gain:z.1%}",
        f"n = {heads:,} KV heads against the best fixed alpha, {optimum.best_fixed:g}",
    )
    return alpha_grid(figure, optimum.head_alpha, optimum.alphas)


def _add_reference(figure: go.Figure, result: RunResult, metric: Figure) -> None:
    """Where the full cache stands: no distance from itself, full agreement, its own answer."""
    if metric.better is None:
        return
    value: float | None = 0.0 if metric.better == "lower" else 1.0
    if metric.has_own_full:
        full = next((v for v in result.variants if v.method == "full"), None)
        value = metric.read(full) if full else None
    if value is None:
        return
    highest = max((np.max(trace.y) for trace in figure.data), default=0.0)
    figure.add_hline(
        y=value,
        line={"color": FULL_LOOK.color, "dash": "dot", "width": 2},
        annotation_text="full cache",
        # On the side where the curves have room for it.
        annotation_position="top left" if value <= highest / 2 else "bottom left",
    )


def _add_oracles(figure: go.Figure, oracles: OracleSet) -> None:
    """The looks that the oracles have in a run's charts."""
    for quantity, look in zip(ORACLES, ORACLE_LOOKS, strict=True):
        if points := oracles.values.get(quantity.key):
            budgets, values = zip(*points, strict=True)
            figure.add_trace(budget_line(look, quantity.label, budgets, values, quantity.unit))


def _curve_chart(metric: Figure) -> Chart[RunResult]:
    def draw(result: RunResult, chosen: Choices) -> go.Figure:
        if metric.is_binary:
            return outcome_figure(result, metric)
        oracles = oracle_sets(result)[int(chosen["oracles"])] if "oracles" in chosen else None
        return curve_figure(result, metric, oracles)

    return Chart(
        name=f"sweep-{metric.key}",
        title=f"{metric.label} against the budget",
        csv="sweep",
        controls=_oracle_controls if metric.key == "head" else lambda _: [],
        has_data=lambda result: result.kind == "sweep" and metric in shown_figures(result),
        draw=draw,
    )


def _oracle_controls(result: RunResult) -> list[Control]:
    names = [(str(at), oracle_name(each)) for at, each in enumerate(oracle_sets(result))]
    return [Control("oracles", "Oracles with the head budgets of", names)]


def _optimum_controls(result: RunResult) -> list[Control]:
    names = [(str(at), optimum_name(each)) for at, each in enumerate(alpha_optima(result))]
    return [Control("optimum", "Method and budget", names)]


def _has_optima(result: RunResult) -> bool:
    return result.kind == "sweep" and bool(alpha_optima(result))


SWEEP_CURVES: tuple[Chart[RunResult], ...] = tuple(map(_curve_chart, SWEPT.values()))
SWEEP_ALPHAS: tuple[Chart[RunResult], ...] = (
    Chart(
        name="alpha-layers",
        title="Best alpha of each layer",
        csv="alphas",
        controls=_optimum_controls,
        has_data=_has_optima,
        draw=lambda result, chosen: alpha_layer_figure(
            alpha_optima(result)[int(chosen["optimum"])]
        ),
    ),
    Chart(
        name="alpha-heads",
        title="Best alpha of each KV head",
        csv="alphas",
        controls=_optimum_controls,
        has_data=_has_optima,
        draw=lambda result, chosen: alpha_head_figure(alpha_optima(result)[int(chosen["optimum"])]),
    ),
)
