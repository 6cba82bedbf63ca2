"""Grids of layers x heads: a variant's figure, against its base where it has one; and alphas."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from ckv_core.results.events import RunResult
from ckv_core.results.quantities import ARRAYS
from ckv_core.results.records import Float32Array
from ui.charts.layout import MISSING_COLOR, display_names, empty_figure, new_figure
from ui.looks.palette import DENSITY_SCALE, DIVERGING_STOPS
from ui.tables.measured import base_values, values_of

Against = Literal["value", "difference", "ratio", "wins"]
CELL_PX = 12
MAX_HEIGHT = 720
_DIVERGING_SCALE = [[at / (len(DIVERGING_STOPS) - 1), c] for at, c in enumerate(DIVERGING_STOPS)]
_SIGN_SCALE = [[0, "#111827"], [1, "#ffffff"]]  # on light cells, on dark ones
_HATCH = {"shape": "/", "fgcolor": MISSING_COLOR, "bgcolor": "rgba(0, 0, 0, 0)", "size": 6}


def head_grid_figure(
    result: RunResult, index: int, name: str = "head_l1", against: Against = "ratio"
) -> go.Figure:
    """A quantity of every query head of one variant, alone or against its base.

    Definition: `value` is the quantity Q itself (see ckv_core/results/quantities.py); with the base
    being the variant's settings without CriticalKV, `ratio` is log2(Q / Q_base), `difference` is
    Q - Q_base and `wins` is whether Q < Q_base, the paper's Fig. 2 for one prompt. Without a
    base it is the value. Below 0 (blue, a line in the cell) the variant's value is the lower one.
    Unit: powers of two, or the quantity's. n = 1 step of one prompt; the title gives the count
    of heads. Colours end at the 98th percentile of the size; the hover text tells true values
    (an infinite ratio reads as twice that end). Layers not evicted are hatched.

    `name`: `head_l1` or a quantity with one value per head. `against`: what is drawn where there is
    a base.
    """
    variant = display_names(result.variants)[index]
    values = values_of(result, index, name)
    if values is None:
        return empty_figure(f"Heads of {variant}", f"{ARRAYS[name].label}: not measured for it.")
    base = None if against == "value" else base_values(result, index, name)
    if base is None:
        figure = _plain_grid(variant, name, values)
    else:
        figure = _GRIDS[against](variant, name, values, base)
    return as_head_grid(figure, values)


def as_head_grid(figure: go.Figure, values: Float32Array, heads: str = "query head") -> go.Figure:
    """Axes, height and hatched bands of a grid.

    Args:
        figure: holds the grid.
        values: [layers, heads]; NaN in layers not evicted.
        heads: what stands on the lower axis.
    """
    _add_missing_layers(figure, values)
    figure.update_xaxes(title_text=heads, showgrid=False, dtick=_tick(values, axis=1))
    figure.update_yaxes(
        title_text="layer", showgrid=False, dtick=_tick(values, axis=0), autorange="reversed"
    )
    figure.update_layout(height=min(MAX_HEIGHT, max(320, 150 + CELL_PX * len(values))))
    return figure


def log2_ratio(head_l1: Float32Array, base: Float32Array) -> Float32Array:
    """log2(head_l1 / base); 0 where both are 0, infinite where only one is, NaN stays NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log2(head_l1) - np.log2(base)
    return np.where((head_l1 == 0) & (base == 0), np.float32(0), values).astype(np.float32)


def _ratio_grid(variant: str, name: str, values: Float32Array, base: Float32Array) -> go.Figure:
    """log2 of values / base per head; colours end at the 98th percentile of its size."""
    shown = log2_ratio(values, base)
    limit = _limit(np.abs(shown), least=0.1)
    # A head that moved only in one of the two has an infinite ratio; Plotly would leave a hole.
    shown = np.where(np.isinf(shown), np.sign(shown) * np.float32(2 * limit), shown)
    title = _won_title(variant, name, values, base)
    return _diverging(title, shown, limit, f"log2 of {ARRAYS[name].unit_name} / base")


def _difference_grid(
    variant: str, name: str, values: Float32Array, base: Float32Array
) -> go.Figure:
    shown = values - base
    limit = _limit(np.abs(shown), least=1e-9)
    title = f"{ARRAYS[name].unit_name} - base"
    return _diverging(_won_title(variant, name, values, base), shown, limit, title)


def _win_grid(variant: str, name: str, values: Float32Array, base: Float32Array) -> go.Figure:
    # -1 is a win, so that blue means lower here as in the other two.
    shown = np.where(np.isnan(values - base), np.nan, np.sign(values - base)).astype(np.float32)
    figure = _diverging(_won_title(variant, name, values, base), shown, 1.0, "")
    ticks = {"tickvals": [-1, 0, 1], "ticktext": ["lower", "same", "higher"]}
    figure.update_traces(
        colorbar={**ticks, "lenmode": "pixels", "len": 120},
        hovertemplate="layer %{y}, head %{x}: %{z} (-1 lower, 1 higher)<extra></extra>",
        selector={"type": "heatmap"},
    )
    return figure


_GRIDS: dict[str, Callable[[str, str, Float32Array, Float32Array], go.Figure]] = {
    "ratio": _ratio_grid,
    "difference": _difference_grid,
    "wins": _win_grid,
}


def _won_title(
    variant: str, name: str, values: Float32Array, base: Float32Array
) -> tuple[str, str]:
    """Share, count and n of the heads whose value is below the base's."""
    valid = ~np.isnan(values) & ~np.isnan(base)
    count, won = int(valid.sum()), int((values < base)[valid].sum())
    share = won / count if count else 0.0
    heading = f"{variant}: {share:.0%} of heads below the base"
    return heading, f"{ARRAYS[name].label}: {won:,} of n = {count:,} heads below its base"


def _diverging(
    title: tuple[str, str], shown: Float32Array, limit: float, colorbar: str
) -> go.Figure:
    """A grid around 0; run_charts.js puts in the dark page's colours by the traces' `meta`."""
    figure = new_figure(*title)
    figure.add_trace(
        go.Heatmap(
            z=shown.astype(np.float32),
            zmin=-limit,
            zmax=limit,
            colorscale=_DIVERGING_SCALE,
            colorbar=colorbar_of(f"{colorbar}; line: lower" if colorbar else "line: lower"),
            hovertemplate="layer %{y}, head %{x}: %{z:.3g}<extra></extra>",
            meta="diverging",
        )
    )
    layers, heads = np.nonzero(shown < 0)
    strong = np.abs(shown[layers, heads]) > limit / 2
    edge = {"color": strong.astype(np.int8), "cmin": 0, "cmax": 1, "colorscale": _SIGN_SCALE}
    figure.add_trace(
        go.Scatter(
            x=heads.astype(np.int16),
            y=layers.astype(np.int16),
            mode="markers",
            marker={"symbol": "line-ew", "size": 4, "line": {**edge, "width": 1}},
            hoverinfo="skip",
            showlegend=False,
            meta="sign",
        )
    )
    return figure


def _plain_grid(variant: str, name: str, values: Float32Array) -> go.Figure:
    count = int((~np.isnan(values)).sum())
    figure = new_figure(f"{variant}: {ARRAYS[name].label}", f"n = {count:,} query heads, 1 step")
    figure.add_trace(
        go.Heatmap(
            z=values,
            zmin=0,
            zmax=_limit(values, least=1e-9),
            colorscale=DENSITY_SCALE,
            colorbar=colorbar_of(ARRAYS[name].unit_name),
            hovertemplate="layer %{y}, head %{x}: %{z:.4g}<extra></extra>",
        )
    )
    return figure


def _add_missing_layers(figure: go.Figure, head_l1: Float32Array) -> None:
    """Hatched bands, one polygon a layer."""
    missing = np.flatnonzero(np.isnan(head_l1).all(axis=1)).astype(np.float32)
    if not missing.size:
        return
    right = head_l1.shape[1] - 0.5
    figure.add_trace(
        go.Scatter(
            x=np.tile(np.array([-0.5, right, right, -0.5, np.nan], np.float32), len(missing)),
            y=(missing[:, None] + np.array([-0.5, -0.5, 0.5, 0.5, np.nan], np.float32)).ravel(),
            mode="none",
            fill="toself",
            fillpattern=_HATCH,
            hoverinfo="skip",
            showlegend=False,
        )
    )


def colorbar_of(title: str) -> dict[str, object]:
    return {
        "title": {"text": title, "side": "right", "font": {"size": 12}},
        "thickness": 12,
        "outlinewidth": 0,
    }


def _limit(values: Float32Array, *, least: float) -> float:
    """End of the colour range: the 98th percentile of the finite values."""
    finite = values[np.isfinite(values)]
    return max(least, float(np.percentile(finite, 98))) if finite.size else least


def _tick(values: Float32Array, *, axis: int) -> int:
    """Distance of ticks that leaves about ten of them on the axis."""
    size: int = values.shape[axis]
    return max(1, round(size / 10))


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
