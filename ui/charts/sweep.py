"""Charts of several alphas on one sample."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from ckv_core.experiment.sweep import alpha_optima
from ckv_core.records.events import RunResult
from ui.charts.heads import alpha_grid
from ui.charts.layout import TEXT_COLOR, line_chart, new_figure, variant_line
from ui.looks.palette import look_of


def alpha_layer_figure(result: RunResult, optimum: int) -> go.Figure:
    """Which alpha of those tried moves each layer's heads least; dotted: the best fixed one.

    Definition: argmin over alpha of the layer's summed isolated head L1. n = layers of one
    prompt; a layer not evicted has none. `optimum` is a place in `alpha_optima`.
    """
    best = alpha_optima(result)[optimum]
    known, look = int((~np.isnan(best.layer_alpha)).sum()), look_of(best.spec)
    steps = look.line() | {"dash": "solid", "shape": "hvh"}
    more: dict[str, Any] = {"hovertemplate": "layer %{x}: alpha %{y:g}<extra></extra>"}
    figure = line_chart(
        "Best alpha of each layer",
        f"Of {len(best.alphas)} alphas; n = {known} layers; dotted: best fixed, "
        f"{best.best_fixed:g}",
        [variant_line(look, "", best.layer_alpha, line=steps, showlegend=False, **more)],
        ("layer", "alpha"),
        tickvals=list(best.alphas),
    )
    figure.add_hline(y=best.best_fixed, line={"color": TEXT_COLOR, "dash": "dot", "width": 2})
    return figure


def alpha_head_figure(result: RunResult, optimum: int) -> go.Figure:
    """Which alpha of those tried moves each KV head least, as a grid.

    Definition: argmin over alpha of isolated head L1, summed over the query heads that share the
    KV head's kept set. n = one prompt. Layers not evicted are grey. `optimum` is as above.
    """
    best = alpha_optima(result)[optimum]
    heads = int((~np.isnan(best.head_alpha)).sum())
    figure = new_figure(
        f"A best alpha per KV head gains {best.head_gain:z.1%}",
        f"n = {heads:,} KV heads against the best fixed alpha, {best.best_fixed:g}",
    )
    return alpha_grid(figure, best.head_alpha, best.alphas)
