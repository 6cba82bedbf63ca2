"""Alphas of KV heads as a grid: those that a variant chose, or those that a sweep found best."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ckv_core.results.events import RunResult
from ckv_core.results.records import Float32Array
from ui.charts.heads import as_head_grid, colorbar_of
from ui.charts.layout import display_names, empty_figure, new_figure
from ui.looks.palette import DENSITY_SCALE
from ui.tables.measured import values_of


def chosen_alphas_figure(result: RunResult, index: int) -> go.Figure:
    """The alpha that each KV head of a `+critical_auto` variant takes, layers x KV heads.

    Definition: of 0, 0.05, ..., 1 the alpha whose kept set has the smallest bound by the
    observation window's attention; see docs/definitions.md. n = KV heads of one prompt. Layers
    not evicted are grey.
    """
    variant, values = display_names(result.variants)[index], values_of(result, index, "head_alpha")
    if values is None:
        return empty_figure(f"Alphas of {variant}", "This variant has one alpha for all heads.")
    known = values[~np.isnan(values)]
    at_zero = f"{(known == 0).mean():.0%}" if known.size else "none"
    subtitle = f"n = {known.size:,} KV heads, {at_zero} of them at 0"
    ticks = (0, 0.25, 0.5, 0.75, 1)
    return alpha_grid(new_figure(f"{variant}: alphas", subtitle), values, ticks)


def alpha_grid(figure: go.Figure, values: Float32Array, ticks: Sequence[float]) -> go.Figure:
    """Draw alphas into a figure.

    Args:
        figure: empty, with its title.
        values: [layers, kv_heads]; NaN in layers not evicted.
        ticks: alphas named beside the colours; the last one is their end.
    """
    figure.add_trace(
        go.Heatmap(
            z=values,
            zmin=0,
            zmax=ticks[-1],
            colorscale=DENSITY_SCALE,
            colorbar={**colorbar_of("alpha"), "tickvals": list(ticks)},
            hovertemplate="layer %{y}, KV head %{x}: alpha %{z:g}<extra></extra>",
        )
    )
    return as_head_grid(figure, values, "KV head")
