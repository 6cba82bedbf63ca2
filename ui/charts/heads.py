"""Head grid: layers x query heads, one variant's head L1, against its base where it has one."""

import numpy as np
import plotly.graph_objects as go

from ckv_core.events import RunResult
from ckv_core.records import Float32Array, Perturbation
from ui.charts.layout import MISSING_COLOR, display_names, empty_figure, new_figure
from ui.palette import DENSITY_SCALE, DIVERGING_SCALE

CELL_PX = 12
MAX_HEIGHT = 720


def head_grid_figure(result: RunResult, index: int) -> go.Figure:
    """Isolated head L1 of every query head of one variant.

    Definition with a base (a variant with CriticalKV): log2(L / L_base), L = ||(A - A')V W_O||_1
    with the full run's query, keys and values at the first decoding step, L_base the same of the
    variant's own settings without CriticalKV. Below 0 (orange) the head moved less than in the
    base. The paper's Fig. 2 shows the sign of this, averaged over many prompts.
    Definition without a base: L itself.
    Unit: powers of two, or L1 without unit. n = 1 step of one prompt; the title gives the count
    of heads. Colours end at the 98th percentile of the size; the hover text tells true values
    (an infinite ratio reads as twice that end). Layers left whole are grey.

    Args:
        result: the run.
        index: of the variant.
    """
    variant = result.variants[index]
    name = display_names(result.variants)[index]
    found = variant.perturbation
    if found is None:
        return empty_figure(f"Heads of {name}", "No perturbation has been measured for it.")
    base = found.base_head_l1
    figure = _plain_grid(name, found) if base is None else _ratio_grid(name, found, base)
    _add_missing_layers(figure, found.head_l1)
    figure.update_xaxes(title_text="query head", showgrid=False, dtick=_tick(found, axis=1))
    figure.update_yaxes(
        title_text="layer", showgrid=False, dtick=_tick(found, axis=0), autorange="reversed"
    )
    figure.update_layout(height=min(MAX_HEIGHT, max(320, 150 + CELL_PX * len(found.head_l1))))
    return figure


def log2_ratio(head_l1: Float32Array, base: Float32Array) -> Float32Array:
    """log2(head_l1 / base); 0 where both are 0, infinite where only one is, NaN stays NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log2(head_l1) - np.log2(base)
    return np.where((head_l1 == 0) & (base == 0), np.float32(0), values).astype(np.float32)


def _ratio_grid(name: str, found: Perturbation, base: Float32Array) -> go.Figure:
    values = log2_ratio(found.head_l1, base)
    limit = _limit(np.abs(values), least=0.1)
    # A head that moved only in one of the two has an infinite ratio; Plotly would leave a hole.
    values = np.where(np.isinf(values), np.sign(values) * np.float32(2 * limit), values)
    share = found.improved_head_share
    count = int((~np.isnan(found.head_l1)).sum())
    figure = new_figure(
        f"{name}: {share:.0%} of heads improved",
        f"Head L1 below the base's in {share:.1%} of n = {count:,} query heads",
    )
    figure.add_trace(
        go.Heatmap(
            z=values.astype(np.float32),
            zmin=-limit,
            zmax=limit,
            colorscale=DIVERGING_SCALE,
            colorbar=_colorbar("log2 of L1 / base L1"),
            hovertemplate="layer %{y}, head %{x}: %{z:.3f}<extra></extra>",
        )
    )
    return figure


def _plain_grid(name: str, found: Perturbation) -> go.Figure:
    values = found.head_l1
    count = int((~np.isnan(values)).sum())
    figure = new_figure(f"{name}: head L1", f"Isolated; n = {count:,} query heads, 1 decoding step")
    figure.add_trace(
        go.Heatmap(
            z=values,
            zmin=0,
            zmax=_limit(values, least=1e-9),
            colorscale=DENSITY_SCALE,
            colorbar=_colorbar("head L1"),
            hovertemplate="layer %{y}, head %{x}: %{z:.4g} L1<extra></extra>",
        )
    )
    return figure


def _add_missing_layers(figure: go.Figure, head_l1: Float32Array) -> None:
    """Grey bands; a second grid would double the figure's size."""
    shapes = [
        {
            "type": "rect",
            "x0": -0.5,
            "x1": head_l1.shape[1] - 0.5,
            "y0": float(layer) - 0.5,
            "y1": float(layer) + 0.5,
            "fillcolor": MISSING_COLOR,
            "line": {"width": 0},
        }
        for layer in np.flatnonzero(np.isnan(head_l1).all(axis=1))
    ]
    figure.update_layout(shapes=shapes)


def _colorbar(title: str) -> dict[str, object]:
    return {
        "title": {"text": title, "side": "right"},
        "thickness": 12,
        "outlinewidth": 0,
    }


def _limit(values: Float32Array, *, least: float) -> float:
    """End of the colour range: the 98th percentile of the finite values."""
    finite = values[np.isfinite(values)]
    return max(least, float(np.percentile(finite, 98))) if finite.size else least


def _tick(found: Perturbation, *, axis: int) -> int:
    """Distance of ticks that leaves about ten of them on the axis."""
    size: int = found.head_l1.shape[axis]
    return max(1, round(size / 10))
