"""Charts of several budgets or alphas on one sample."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from ckv_core.experiment.runs import together
from ckv_core.experiment.sweep import AlphaOptimum, alpha_optima
from ckv_core.records.events import RunResult
from ui.charts.chart import Chart, Control
from ui.charts.heads import alpha_grid
from ui.charts.layout import TEXT_COLOR, new_figure
from ui.charts.points import points_chart
from ui.looks.palette import look_of
from ui.tables.sweep import optimum_name


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


def _optimum_controls(result: RunResult) -> list[Control]:
    names = [(str(at), optimum_name(each)) for at, each in enumerate(alpha_optima(result))]
    return [Control("optimum", "Method and budget", names)]


def _has_optima(result: RunResult) -> bool:
    return result.kind == "sweep" and bool(alpha_optima(result))


_CURVES: Chart[RunResult] = points_chart(
    "sweep", "Against the budget", "sweep", lambda result: together([result])
)
SWEEP_CURVES: tuple[Chart[RunResult], ...] = (
    replace(_CURVES, has_data=lambda result: result.kind == "sweep" and _CURVES.has_data(result)),
)
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
