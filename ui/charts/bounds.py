"""Stage 1's attention mass, the chain of bounds and how tight it is, head by head.

The bounds can be read per query head, or per KV head: of the sums over the query heads that share
its kept set.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ckv_core.results.chain import (
    ASSUMED_MASS,
    chain_of,
    check_chain,
    head_sums,
    lowest_sigma,
    shared_kv_heads,
    tightness_of,
)
from ckv_core.results.events import RunResult
from ckv_core.results.records import Float32Array
from ui.charts.layers import ORACLE_LOOKS
from ui.charts.layout import (
    TEXT_COLOR,
    display_names,
    empty_figure,
    new_figure,
    ranked_names,
    variant_line,
)
from ui.looks.palette import SPARE, WARN_COLOR, Look, looks_of
from ui.tables.csv_text import Cell, csv_text, number
from ui.tables.measured import holders, values_of

_BOUNDS = ("theta", "theta-hat", "relaxed theta")
_CHAIN_LOOKS = (
    ("L, measured", "lines", None),  # in the variant's own
    *((name, "markers", Look(*look)) for name, look in zip(_BOUNDS, SPARE, strict=False)),
)
_SUMMED = ("head_l1", "theta", "theta_hat", "theta_relaxed")
NO_BOUNDS = "Run with “Bounds and oracles” to measure this."


def bounds_figure(result: RunResult, index: int, kv_heads: int | None = None) -> go.Figure:
    """The measured head L1 and its three upper bounds, heads ordered by the measured value.

    Definition: L, theta, theta-hat and relaxed theta of the paper's theorems 2 to 4 with the true
    attention of the first decoding step. Theta and theta-hat bound L always; the relaxed one is
    above theta-hat only where stage 1's mass sigma is above 0.5, so heads at or below it stand as
    crosses at the foot. Unit: L1, on a logarithmic axis, where what is not above 0 has no place.
    n = query heads of one prompt, one step; with `kv_heads` KV heads, each of its query heads' sums
    and covered only if all of them are.
    """
    label, variant = display_names(result.variants)[index], result.variants[index]
    title = f"{label}: bounds of the {'head L1' if kv_heads is None else 'L1 per KV head'}"
    chain, check = chain_of(variant, kv_heads), check_chain(variant, kv_heads)
    sigma = lowest_sigma(variant, kv_heads)
    if chain is None or check is None or sigma is None:
        return empty_figure(title, NO_BOUNDS)
    flat = chain.reshape(len(chain), -1)
    order = np.argsort(flat[0], kind="stable")
    order = order[np.isfinite(flat[:, order]).all(axis=0)]
    kind = _kind(kv_heads)
    subtitle = f"{check.violations} violations in {check.covered:,} {kind}s with sigma > 0.5"
    figure = new_figure(title, f"{subtitle}; n = {check.heads:,}", legend_rows=5)
    where = head_names(chain[0], order, kind)
    shown = np.where(flat > 0, flat, np.float32(np.nan))[:, order]
    measured = replace(looks_of(result.variants)[index], dash="solid")
    for (name, mode, look), values in zip(_CHAIN_LOOKS, shown, strict=True):
        trace = variant_line(look or measured, name, values, "L1")
        trace.update(mode=mode, marker={"size": 4})
        trace.update(customdata=where, hovertemplate="%{customdata}: %{y:.4g} L1")
        figure.add_trace(trace)
    positive = shown[np.isfinite(shown)]
    foot = np.float32(positive.min() / 2 if positive.size else 1)
    _mark_uncovered(figure, sigma.reshape(-1)[order], where, np.full(len(order), foot), kind)
    figure.update_xaxes(title_text=f"{kind}s, by measured L1")
    figure.update_yaxes(title_text="L1", type="log", dtick=1, exponentformat="power")
    # Plotly writes powers a quarter larger than other ticks.
    figure.update_yaxes(tickfont={"size": 9.6})
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
        ("oracle", oracle, ORACLE_LOOKS[0]),
        ("kept in all", values_of(result, index, "sigma_kept"), Look(*SPARE[1])),
    )
    for name, values, look in marks:
        if values is not None:
            points = variant_line(look, name, values.reshape(-1)[order], "")
            points.update(mode="markers", marker={"size": 5}, customdata=where)
            figure.add_trace(points.update(hovertemplate="%{customdata}: %{y:.3f}"))
    own = looks_of(result.variants)[index]
    line = variant_line(own, "sigma, measured", flat[order], "")
    figure.add_trace(line.update(customdata=where, hovertemplate="%{customdata}: %{y:.3f}"))
    _mark_uncovered(figure, flat[order], where, flat[order])
    figure.add_hline(y=ASSUMED_MASS, line={"color": TEXT_COLOR, "dash": "dot", "width": 2})
    figure.update_xaxes(title_text="query heads, by sigma")
    figure.update_yaxes(title_text="attention mass", range=[0, 1.02])
    return figure


def tightness_figure(result: RunResult, kv_heads: int | None = None) -> go.Figure:
    """How near the measured head L1 comes to its bound theta, one curve per variant.

    Definition: for each x, the share of query heads whose L / theta is at most x; a bound that
    were reached everywhere would jump to 1 at x = 1. Unit: ratio. n = query heads, one step; with
    `kv_heads` KV heads, each the sum of its query heads' L over the sum of their theta.
    """
    title = f"Tightness of the bound, L / theta{'' if kv_heads is None else ', per KV head'}"
    shares = {i: tightness_of(result.variants[i], kv_heads) for i in holders(result, "theta")}
    curves = {i: np.sort(each[~np.isnan(each)]) for i, each in shares.items() if each is not None}
    if not curves:
        return empty_figure(title, NO_BOUNDS)
    names, looks = ranked_names(result), looks_of(result.variants)
    n, kind = max(len(curve) for curve in curves.values()), _kind(kv_heads)
    figure = new_figure(title, f"Share of n = {n:,} {kind}s at or below x", legend_rows=len(curves))
    for index, curve in curves.items():
        share = (np.arange(1, len(curve) + 1) / max(len(curve), 1)).astype(np.float32)
        line = variant_line(looks[index], names[index], share, "")
        line.update(x=curve, mode="lines", hovertemplate="L / theta up to %{x:.3f}: %{y:.0%}")
        figure.add_trace(line)
    figure.update_xaxes(title_text="L / theta", rangemode="tozero")
    figure.update_yaxes(title_text=f"share of {kind}s", range=[0, 1.02])
    return figure


def bounds_csv(result: RunResult) -> str:
    """Data of `bounds_figure` and `tightness_figure`: one line per variant and head of each kind.

    Of a KV head the four L1 are sums over its query heads, and sigma is their lowest.
    """
    return csv_text(
        ("variant", "spec", "per", "layer", "head", *_SUMMED, "sigma_stage1", "tightness"),
        _rows(result),
    )


def head_names(
    values: Float32Array, order: NDArray[np.int64], kind: str = "query head"
) -> list[str]:
    """`layer 3, query head 1` of each flattened place."""
    heads = values.shape[1]
    return [f"layer {at // heads}, {kind} {at % heads}" for at in order]


def _rows(result: RunResult) -> Iterator[tuple[Cell, ...]]:
    shared = shared_kv_heads(result.model)
    for index in holders(result, "theta"):
        variant = result.variants[index]
        arrays = [values_of(result, index, name) for name in _SUMMED]
        for kv_heads in (None,) if shared is None else (None, shared):
            columns = [None if each is None else head_sums(each, kv_heads) for each in arrays]
            columns += [lowest_sigma(variant, kv_heads), tightness_of(variant, kv_heads)]
            shape = next(each.shape for each in columns if each is not None)
            for at in np.ndindex(*shape):
                cells = (None if each is None else number(each[at]) for each in columns)
                yield (index, variant.spec, _kind(kv_heads), *at, *cells)


def _kind(kv_heads: int | None) -> str:
    """What is counted: the heads that one number stands for."""
    return "query head" if kv_heads is None else "KV head"


def _mark_uncovered(
    figure: go.Figure,
    sigma: Float32Array,
    where: list[str],
    heights: Float32Array,
    kind: str = "query head",
) -> None:
    """Crosses at the heads that assumption 1 leaves out."""
    at = np.flatnonzero(sigma <= ASSUMED_MASS)
    figure.add_trace(
        go.Scatter(
            x=at.astype(np.int16),
            y=heights[at],
            name=f"sigma at most 0.5: {len(at):,} {kind}s",
            mode="markers",
            marker={"symbol": "x", "size": 8, "color": WARN_COLOR},
            customdata=[where[i] for i in at],
            hovertemplate="%{customdata}: not covered by the theorem<extra></extra>",
        )
    )
