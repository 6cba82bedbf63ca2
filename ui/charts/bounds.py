"""Stage 1's attention mass, the chain of bounds and how tight it is, head by head."""

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ckv_core.events import RunResult
from ckv_core.metrics.chain import ASSUMED_MASS, chain_of, check_chain
from ckv_core.records import Float32Array
from ui.charts.layout import TEXT_COLOR, display_names, empty_figure, new_figure, variant_line
from ui.charts.measured import holders, values_of
from ui.palette import color_of

_CHAIN_LOOKS = (
    ("L, measured", "lines", "circle"),
    ("theta", "markers", "square"),
    ("theta-hat", "markers", "triangle-up"),
    ("relaxed theta", "markers", "diamond-open"),
)
NO_BOUNDS = "Run with “Bounds and oracles” to measure this."


def bounds_figure(result: RunResult, index: int) -> go.Figure:
    """The measured head L1 and its three upper bounds, heads ordered by the measured value.

    Definition: L, theta, theta-hat and relaxed theta of the paper's theorems 2 to 4 with the true
    attention of the first decoding step. Theta and theta-hat bound L always; the relaxed one is
    above theta-hat only where stage 1's mass sigma is above 0.5, so heads at or below it stand as
    crosses at the foot. Unit: L1, on a logarithmic axis, where what is not above 0 has no place.
    n = query heads of one prompt, one step.
    """
    variant = display_names(result.variants)[index]
    title = f"{variant}: bounds of the head L1"
    chain, found = chain_of(result.variants[index]), check_chain(result.variants[index])
    sigma = values_of(result, index, "sigma_stage1")
    if chain is None or found is None or sigma is None:
        return empty_figure(title, NO_BOUNDS)
    flat = chain.reshape(len(chain), -1)
    order = np.argsort(flat[0], kind="stable")
    order = order[np.isfinite(flat[:, order]).all(axis=0)]
    subtitle = f"{found.violations} violations in {found.covered:,} heads with sigma > 0.5"
    figure = new_figure(title, f"{subtitle}; n = {found.heads:,}", legend_rows=5)
    where = head_names(chain[0], order)
    shown = np.where(flat > 0, flat, np.float32(np.nan))[:, order]
    for at, (name, mode, symbol) in enumerate(_CHAIN_LOOKS):
        trace = variant_line(at + 1, name, shown[at], "L1")
        trace.update(mode=mode, line={"dash": "solid"}, marker={"symbol": symbol, "size": 4})
        trace.update(customdata=where, hovertemplate="%{customdata}: %{y:.4g} L1")
        figure.add_trace(trace)
    positive = shown[np.isfinite(shown)]
    foot = np.float32(positive.min() / 2 if positive.size else 1)
    _mark_uncovered(figure, sigma.reshape(-1)[order], where, np.full(len(order), foot))
    figure.update_xaxes(title_text="query heads, by measured L1")
    figure.update_yaxes(title_text="L1", type="log", dtick=1, exponentformat="power")
    return figure


def sigma_figure(result: RunResult, index: int) -> go.Figure:
    """Attention mass of each head: of stage 1, of all that is kept, and the most of stage 1.

    Definition: sigma = sum of the decoding query's true attention over stage 1's entries, its own
    entry included; kept is the same over all entries kept; the oracle value takes as many
    entries as stage 1 by the true attention itself, so the gap is the observation window's error.
    The paper's assumption 1 is sigma > 0.5 (line); heads at or below it are crosses.
    Unit: share of 1. n = query heads of one prompt, one step.
    """
    variant = display_names(result.variants)[index]
    title = f"{variant}: attention mass of stage 1"
    sigma = values_of(result, index, "sigma_stage1")
    if sigma is None:
        return empty_figure(title, NO_BOUNDS)
    flat = sigma.reshape(-1)
    order = np.argsort(flat, kind="stable")
    order = order[np.isfinite(flat[order])]
    share = f"{(flat[order] > ASSUMED_MASS).mean():.1%}" if order.size else "none"
    oracle = values_of(result, index, "sigma_oracle")
    best = ""
    if oracle is not None and order.size:
        best = f" (oracle {(oracle.reshape(-1)[order] > ASSUMED_MASS).mean():.1%})"
    subtitle = f"sigma > 0.5 in {share}{best} of n = {order.size:,} heads"
    figure = new_figure(title, subtitle, legend_rows=4)
    where = head_names(sigma, order)
    marks = (
        ("oracle", oracle, TEXT_COLOR, "circle-open"),
        ("kept in all", values_of(result, index, "sigma_kept"), color_of(3), "diamond-open"),
    )
    for name, values, color, symbol in marks:
        if values is not None:
            points = variant_line(0, name, values.reshape(-1)[order], "")
            marker = {"color": color, "symbol": symbol, "size": 5}
            points.update(mode="markers", marker=marker, customdata=where)
            figure.add_trace(points.update(hovertemplate="%{customdata}: %{y:.3f}"))
    line = variant_line(index, "sigma, measured", flat[order], "")
    figure.add_trace(line.update(customdata=where, hovertemplate="%{customdata}: %{y:.3f}"))
    _mark_uncovered(figure, flat[order], where, flat[order])
    figure.add_hline(y=ASSUMED_MASS, line={"color": TEXT_COLOR, "dash": "dot", "width": 2})
    figure.update_xaxes(title_text="query heads, by sigma")
    figure.update_yaxes(title_text="attention mass", range=[0, 1.02])
    return figure


def tightness_figure(result: RunResult) -> go.Figure:
    """How near the measured head L1 comes to its bound theta, one curve per variant.

    Definition: for each x, the share of query heads whose L / theta is at most x; a bound that
    were reached everywhere would jump to 1 at x = 1. Unit: ratio. n = query heads, one step.
    """
    title = "Tightness of the bound, L / theta"
    indices = [i for i in holders(result, "theta") if values_of(result, i, "head_l1") is not None]
    if not indices:
        return empty_figure(title, NO_BOUNDS)
    names = display_names(result.variants)
    curves = {i: _tightness(result, i) for i in indices}
    n = max(len(curve) for curve in curves.values())
    figure = new_figure(title, f"Share of n = {n:,} heads at or below x", legend_rows=len(curves))
    for index, curve in curves.items():
        share = (np.arange(1, len(curve) + 1) / max(len(curve), 1)).astype(np.float32)
        line = variant_line(index, names[index], share, "")
        line.update(x=curve, mode="lines", hovertemplate="L / theta up to %{x:.3f}: %{y:.0%}")
        figure.add_trace(line)
    figure.update_xaxes(title_text="L / theta", rangemode="tozero")
    figure.update_yaxes(title_text="share of heads", range=[0, 1.02])
    return figure


def head_names(values: Float32Array, order: NDArray[np.int64]) -> list[str]:
    """`layer 3, head 1` of each flattened place."""
    heads = values.shape[1]
    return [f"layer {at // heads}, head {at % heads}" for at in order]


def _tightness(result: RunResult, index: int) -> Float32Array:
    """Sorted L / theta of the heads where it is defined."""
    l1, theta = values_of(result, index, "head_l1"), values_of(result, index, "theta")
    if l1 is None or theta is None:
        return np.array([], np.float32)
    valid = np.isfinite(l1) & np.isfinite(theta) & (theta > 0)
    return np.sort(l1[valid] / theta[valid]).astype(np.float32)


def _mark_uncovered(
    figure: go.Figure, sigma: Float32Array, where: list[str], heights: Float32Array
) -> None:
    """Crosses at the heads that assumption 1 leaves out."""
    at = np.flatnonzero(sigma <= ASSUMED_MASS)
    figure.add_trace(
        go.Scatter(
            x=at.astype(np.int16),
            y=heights[at],
            name=f"sigma at most 0.5: {len(at):,} heads",
            mode="markers",
            marker={"symbol": "x", "size": 8, "color": color_of(2)},
            customdata=[where[i] for i in at],
            hovertemplate="%{customdata}: not covered by the theorem<extra></extra>",
        )
    )
