"""Grids of layers x heads: a variant's figure, against its base where it has one; and alphas."""

from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from ckv_core.base.percent import percent
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import ARRAYS
from ckv_core.records.records import Float32Array
from ui.charts.layout import MISSING_COLOR, display_names, empty_figure, new_figure
from ui.looks.palette import DENSITY_SCALE, STOPS
from ui.tables.measured import base_values, values_of

Against = Literal["value", "difference", "ratio", "wins"]
CELL_PX = 12
MAX_HEIGHT = 720
_STOPS = STOPS["DIVERGING_STOPS"]
_DIVERGING_SCALE = [[at / (len(_STOPS) - 1), color] for at, color in enumerate(_STOPS)]
_SIGN_SCALE = [[0, "#111827"], [1, "#ffffff"]]  # on light cells, on dark ones
_HATCH = {"shape": "/", "fgcolor": MISSING_COLOR, "bgcolor": "rgba(0, 0, 0, 0)", "size": 6}
_SIGNS = {"tickvals": [-1, 0, 1], "ticktext": ["lower", "same", "higher"]}


def head_grid_figure(
    result: RunResult, variant: int, quantity: str = "head_l1", against: Against = "ratio"
) -> go.Figure:
    """A quantity of every query head of one variant, alone or against its base.

    Definition: `value` is the quantity Q itself (see ckv_core/records/metrics.py); with the base
    being the variant's settings without CriticalKV, `ratio` is log2(Q / Q_base), `difference` is
    Q - Q_base and `wins` is whether Q < Q_base, the paper's Fig. 2 for one prompt. Without a
    base it is the value. Below 0 (blue, a line in the cell) the variant's value is the lower one.
    Unit: powers of two, or the quantity's. n = 1 step of one prompt; the title gives the count
    of heads. Colours end at the 98th percentile of the size; the hover text has true values
    (an infinite ratio reads as twice that end). Layers not evicted are hatched.

    `quantity`: one with a value per head. `against`: what is drawn where there is a base.
    """
    name = display_names(result.variants)[variant]
    values = values_of(result, variant, quantity)
    if values is None:
        return empty_figure(f"{name}: {ARRAYS[quantity].label}")
    base = None if against == "value" else base_values(result, variant, quantity)
    label, unit = ARRAYS[quantity].label, ARRAYS[quantity].unit_name
    if base is None:
        count = int((~np.isnan(values)).sum())
        figure = new_figure(f"{name}: {label}", f"n = {count:,} query heads, 1 step")
        _add_heat(figure, values, (0, _limit(values, least=1e-9)), colorbar_of(unit), ".4g")
        return _as_grid(figure, values)
    valid = ~np.isnan(values) & ~np.isnan(base)
    count, won = int(valid.sum()), int((values < base)[valid].sum())
    figure = new_figure(
        f"{name}: {percent(won / max(count, 1))} of heads below the base",
        f"{label}; {won:,} of n = {count:,} heads",
    )
    if against == "wins":
        # -1 is a win, so that blue means lower here as in the other two.
        shown, limit, title = np.sign(values - base), 1.0, ""
    elif against == "difference":
        shown, title = values - base, f"{unit} - base; "
        limit = _limit(np.abs(shown), least=1e-9)
    else:
        shown, title = log2_ratio(values, base), f"log2 of {unit} / base; "
        limit = _limit(np.abs(shown), least=0.1)
        # A head that moved only in one of the two has an infinite ratio; Plotly would leave a hole.
        shown = np.where(np.isinf(shown), np.sign(shown) * np.float32(2 * limit), shown)
    colorbar = colorbar_of(f"{title}lined: lower")
    if against == "wins":
        colorbar |= {**_SIGNS, "lenmode": "pixels", "len": 120}
    _add_diverging(figure, shown, limit, colorbar)
    return _as_grid(figure, values)


def chosen_alphas_figure(result: RunResult, variant: int) -> go.Figure:
    """The alpha that each KV head of a `+critical_auto` variant takes, layers x KV heads.

    Definition: of 0, 0.05, ..., 1 the alpha whose kept set has the smallest bound by the
    observation window's attention; see docs/reference/definitions.md. n = KV heads of one prompt.
    Layers not evicted are grey.
    """
    name, values = display_names(result.variants)[variant], values_of(result, variant, "head_alpha")
    if values is None:
        return empty_figure(f"{name}: alphas")
    known = values[~np.isnan(values)]
    at_zero = percent((known == 0).mean()) if known.size else "none"
    subtitle = f"n = {known.size:,} KV heads, {at_zero} of them at 0"
    figure = new_figure(f"{name}: alphas", subtitle)
    colorbar = {**colorbar_of("alpha"), "tickvals": [0, 0.25, 0.5, 0.75, 1]}
    _add_heat(figure, values, (0, 1), colorbar, "g", "KV head %{x}: alpha")
    return _as_grid(figure, values, "KV head")


def log2_ratio(head_l1: Float32Array, base: Float32Array) -> Float32Array:
    """log2(head_l1 / base); 0 where both are 0, infinite where only one is, NaN stays NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log2(head_l1) - np.log2(base)
    return np.where((head_l1 == 0) & (base == 0), np.float32(0), values).astype(np.float32)


def colorbar_of(title: str) -> dict[str, Any]:
    words = {"text": title, "side": "right", "font": {"size": 12}}
    return {"title": words, "thickness": 12, "outlinewidth": 0}


def _add_heat(
    figure: go.Figure,
    values: Float32Array,
    limits: tuple[float, float],
    colorbar: dict[str, Any],
    digits: str,
    words: str = "head %{x}:",
    **more: Any,
) -> None:
    """Cells of `values`; `digits` is how the hover text writes one, behind its place in words."""
    hover = f"layer %{{y}}, {words} %{{z:{digits}}}<extra></extra>"
    low, high = limits
    scale = {"zmin": low, "zmax": high, "colorscale": DENSITY_SCALE} | more
    figure.add_heatmap(z=values, colorbar=colorbar, hovertemplate=hover, **scale)


def _add_diverging(
    figure: go.Figure, shown: Float32Array, limit: float, colorbar: dict[str, Any]
) -> None:
    """Cells around 0; run_charts.js puts in the dark page's colours by the traces' `meta`."""
    scale: dict[str, Any] = {"colorscale": _DIVERGING_SCALE, "meta": "diverging"}
    _add_heat(figure, shown.astype(np.float32), (-limit, limit), colorbar, ".3g", **scale)
    layers, heads = np.nonzero(shown < 0)
    strong = np.abs(shown[layers, heads]) > limit / 2
    edge = {"color": strong.astype(np.int8), "cmin": 0, "cmax": 1, "colorscale": _SIGN_SCALE}
    figure.add_scatter(
        x=heads.astype(np.int16),
        y=layers.astype(np.int16),
        mode="markers",
        marker={"symbol": "line-ew", "size": 4, "line": {**edge, "width": 1}},
        hoverinfo="skip",
        showlegend=False,
        meta="sign",
    )


def _as_grid(figure: go.Figure, values: Float32Array, heads: str = "query head") -> go.Figure:
    """Axes, height and hatched bands of a grid.

    Args:
        figure: holds the grid.
        values: [layers, heads]; NaN in layers not evicted.
        heads: what is on the lower axis.
    """
    layers, count = values.shape
    missing = np.flatnonzero(np.isnan(values).all(axis=1)).astype(np.float32)
    if missing.size:  # one polygon a layer
        right = count - 0.5
        figure.add_scatter(
            x=np.tile(np.array([-0.5, right, right, -0.5, np.nan], np.float32), len(missing)),
            y=(missing[:, None] + np.array([-0.5, -0.5, 0.5, 0.5, np.nan], np.float32)).ravel(),
            mode="none",
            fill="toself",
            fillpattern=_HATCH,
            hoverinfo="skip",
            showlegend=False,
        )
    # About ten ticks on each axis.
    across, down = (max(1, round(size / 10)) for size in (count, layers))
    figure.update_xaxes(title_text=heads, showgrid=False, dtick=across)
    figure.update_yaxes(title_text="layer", showgrid=False, dtick=down, autorange="reversed")
    figure.update_layout(height=min(MAX_HEIGHT, max(320, 150 + CELL_PX * layers)))
    return figure


def _limit(values: Float32Array, *, least: float) -> float:
    """End of the colour range: the 98th percentile of the finite values."""
    finite = values[np.isfinite(values)]
    return max(least, float(np.percentile(finite, 98))) if finite.size else least
