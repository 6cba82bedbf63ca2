"""Charts of a sweep: a quantity against the budget, and the best alpha per layer and per head."""

import html

import numpy as np
import plotly.graph_objects as go

from ckv_core.events import RunResult
from ckv_core.sweep_reading import AlphaOptimum, Figure, curves
from ui.charts.layout import MISSING_COLOR, TEXT_COLOR, empty_figure, new_figure
from ui.palette import DENSITY_SCALE, color_of, dash_of, marker_of
from ui.sweep_tables import curve_name

CELL_PX = 12


def curve_figure(result: RunResult, metric: Figure) -> go.Figure:
    """One quantity against the budget, one line per method and alpha; the full cache dotted.

    Definition: see docs/definitions.md for each quantity; budgets are resolved tokens, the axis
    is logarithmic. n = one prompt; L1 and KL at the first decoding step.
    """
    drawn = [(at, curve, curve.values(result, metric)) for at, curve in enumerate(curves(result))]
    drawn = [each for each in drawn if each[2]]
    if not drawn:
        return empty_figure(metric.label, "Not measured in this sweep.")
    closer = "lower" if metric.lower else "higher"
    figure = new_figure(
        f"{metric.label} against the budget",
        f"One prompt; {closer} is closer to the full cache",
        legend_rows=len(drawn),
    )
    for at, curve, points in drawn:
        figure.add_trace(
            go.Scatter(
                x=np.array([budget for budget, _ in points], np.int32),
                y=np.array([value for _, value in points], np.float64),
                name=html.escape(curve_name(curve), quote=False),
                mode="lines+markers",
                line={"color": color_of(at), "dash": dash_of(at), "width": 2},
                marker={"color": color_of(at), "symbol": marker_of(at), "size": 7},
                hovertemplate=f"budget %{{x}}: %{{y:.4g}} {metric.unit}",
            )
        )
    _add_reference(figure, result, metric)
    ticks = sorted({budget for _, _, points in drawn for budget, _ in points})
    figure.update_xaxes(
        title_text="budget, entries per KV head",
        type="log",
        tickvals=ticks,
        ticktext=[f"{tick:,}" for tick in ticks],
    )
    figure.update_yaxes(title_text=metric.unit, rangemode="tozero")
    return figure


def alpha_layer_figure(optimum: AlphaOptimum) -> go.Figure:
    """Which alpha of those tried moves each layer's heads least; dotted: the best fixed one.

    Definition: argmin over alpha of the layer's mean isolated head L1. n = one prompt.
    """
    layers = len(optimum.layer_alpha)
    figure = new_figure(
        "Best alpha of each layer", f"Least mean head L1 of {len(optimum.alphas)} alphas tried"
    )
    figure.add_trace(
        go.Scatter(
            x=np.arange(layers, dtype=np.int16),
            y=optimum.layer_alpha,
            mode="lines+markers",
            line={"color": color_of(1), "width": 2, "shape": "hvh"},
            marker={"color": color_of(1), "size": 6},
            hovertemplate="layer %{x}: alpha %{y:g}<extra></extra>",
        )
    )
    figure.add_hline(
        y=optimum.best_fixed,
        line={"color": TEXT_COLOR, "dash": "dot", "width": 2},
        annotation_text=f"best fixed: {optimum.best_fixed:g}",
        annotation_position="top right",
    )
    figure.update_xaxes(title_text="layer")
    figure.update_yaxes(title_text="alpha", range=[-0.05, 1.08])
    figure.update_layout(showlegend=False)
    return figure


def alpha_head_figure(optimum: AlphaOptimum) -> go.Figure:
    """Which alpha of those tried moves each KV head least, as a grid.

    Definition: argmin over alpha of isolated head L1, summed over the query heads that share the
    KV head's kept set. n = one prompt. Layers left whole are grey.
    """
    heads = int((~np.isnan(optimum.head_alpha)).sum())
    figure = new_figure(
        f"A best alpha per KV head gains {optimum.head_gain:.1%}",
        f"n = {heads:,} KV heads against the best fixed alpha, {optimum.best_fixed:g}",
    )
    figure.add_trace(
        go.Heatmap(
            z=optimum.head_alpha,
            zmin=0,
            zmax=max(optimum.alphas),
            colorscale=DENSITY_SCALE,
            colorbar={
                "title": {"text": "alpha", "side": "right"},
                "thickness": 12,
                "outlinewidth": 0,
                "tickvals": list(optimum.alphas),
            },
            hovertemplate="layer %{y}, KV head %{x}: alpha %{z:g}<extra></extra>",
        )
    )
    layers, kv_heads = optimum.head_alpha.shape
    figure.update_xaxes(title_text="KV head", showgrid=False, dtick=max(1, round(kv_heads / 10)))
    figure.update_yaxes(
        title_text="layer", showgrid=False, dtick=max(1, round(layers / 10)), autorange="reversed"
    )
    figure.update_layout(height=min(720, max(320, 150 + CELL_PX * layers)))
    figure.update_layout(plot_bgcolor=MISSING_COLOR)
    return figure


def _add_reference(figure: go.Figure, result: RunResult, metric: Figure) -> None:
    """Where the full cache stands: no distance from itself, full agreement, its own answer."""
    value: float | None = 0.0 if metric.lower else 1.0
    if metric.key == "answer":
        full = next((v for v in result.variants if v.method == "full"), None)
        value = metric.read(full) if full else None
    if value is not None:
        figure.add_hline(
            y=value,
            line={"color": TEXT_COLOR, "dash": "dot", "width": 2},
            annotation_text="full cache",
            annotation_position="top left" if metric.lower else "bottom left",
        )
