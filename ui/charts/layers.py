"""Perturbation by layer and after the last one, a line or a bar per variant."""

import numpy as np
import plotly.graph_objects as go

from ckv_core.events import RunResult
from ckv_core.records import Float32Array, Perturbation
from ui.charts.layout import display_names, empty_figure, name_bars, new_figure, variant_line
from ui.palette import color_of

NOT_MEASURED = "No perturbation has been measured yet."
ONE_STEP = "n = 1 decoding step; lower is closer to full"


def layer_figure(result: RunResult, *, relative_to: int | None = None) -> go.Figure:
    """Cascaded hidden L1 after each block, one line per variant.

    Definition: ||x_l - x^_l||_1 of the residual stream after block l, the variant's own run
    against the full cache's, at the first decoding step, before the final norm.
    Unit: L1 over the hidden size, no unit. n = 1 step of one prompt.

    Args:
        result: the run.
        relative_to: draw the ratio to this variant's line instead; it is then flat at 1.
    """
    title = "Hidden state moved after each block"
    measured = _measured(result)
    if not measured or (relative_to is not None and relative_to not in measured):
        return empty_figure(title, NOT_MEASURED)
    names = display_names(result.variants)
    if relative_to is None:
        figure, unit = new_figure(title, f"Cascaded; {ONE_STEP}", legend_rows=len(measured)), "L1"
    else:
        subtitle = f"Cascaded, relative to {names[relative_to]}; n = 1 decoding step"
        figure, unit = new_figure(title, subtitle, legend_rows=len(measured)), "times"
    for index, found in measured.items():
        values = found.layer_hidden_l1
        if relative_to is not None:
            values = ratio(values, measured[relative_to].layer_hidden_l1)
        figure.add_trace(variant_line(index, names[index], values, unit))
    figure.update_xaxes(title_text="layer")
    label = "hidden L1" if relative_to is None else "ratio of hidden L1"
    figure.update_yaxes(title_text=label, rangemode="tozero")
    return figure


def head_layer_figure(result: RunResult) -> go.Figure:
    """Mean isolated head L1 of each layer, one line per variant.

    Definition: mean over the layer's query heads of ||(A - A')V W_O||_1 with the full run's
    query, keys and values, at the first decoding step. Layers left whole are gaps.
    Unit: L1 over the hidden size, no unit. n = query heads of a layer, one step, one prompt.
    """
    title = "Mean head L1 of each layer"
    measured = _measured(result)
    if not measured:
        return empty_figure(title, NOT_MEASURED)
    names = display_names(result.variants)
    heads = next(iter(measured.values())).head_l1.shape[1]
    subtitle = f"Isolated; mean of {heads} query heads, n = 1 decoding step"
    figure = new_figure(title, subtitle, legend_rows=len(measured))
    for index, found in measured.items():
        figure.add_trace(variant_line(index, names[index], layer_means(found.head_l1), "L1"))
    figure.update_xaxes(title_text="layer")
    figure.update_yaxes(title_text="mean head L1", rangemode="tozero")
    return figure


def final_figure(result: RunResult) -> go.Figure:
    """Cascaded hidden L1 after the last block, one bar per variant.

    Definition: the last value of each line of `layer_figure`, before the final norm.
    Unit: L1 over the hidden size, no unit. n = 1 step of one prompt.
    """
    title = "Final hidden L1"
    measured = _measured(result)
    if not measured:
        return empty_figure(title, NOT_MEASURED)
    names = display_names(result.variants)
    values = np.array([found.final_hidden_l1 for found in measured.values()], np.float32)
    figure = new_figure(title, ONE_STEP)
    figure.add_trace(
        go.Bar(
            x=values,
            y=np.arange(len(measured), dtype=np.int16),
            orientation="h",
            customdata=[names[index] for index in measured],
            marker={"color": [color_of(index) for index in measured]},
            texttemplate="%{x:.4g}",
            hovertemplate="%{customdata}: %{x:.6g} L1<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="hidden L1")
    name_bars(figure, [names[index] for index in measured])
    return figure


def layer_means(head_l1: Float32Array) -> Float32Array:
    """Mean over the heads [layers]; NaN where the layer has no value."""
    valid = ~np.isnan(head_l1)
    counts = valid.sum(axis=1)
    sums = np.where(valid, head_l1, 0).sum(axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).astype(np.float32)


def ratio(values: Float32Array, base: Float32Array) -> Float32Array:
    """Values / base; NaN where the base is 0."""
    out = np.full(values.shape, np.nan, np.float32)
    np.divide(values, base, out=out, where=base > 0)
    return out


def _measured(result: RunResult) -> dict[int, Perturbation]:
    """The variants that have a perturbation, by index."""
    return {i: v.perturbation for i, v in enumerate(result.variants) if v.perturbation is not None}
