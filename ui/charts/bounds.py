"""Stage 1's attention mass, the chain of bounds and how tight it is, head by head."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ckv_core.base.percent import percent
from ckv_core.records.chain import (
    ASSUMED_MASS,
    chain_of,
    check_chain,
    tightness_of,
)
from ckv_core.records.events import RunResult
from ckv_core.records.records import Float32Array
from ui.charts.layers import ORACLE_LOOKS
from ui.charts.layout import (
    TEXT_COLOR,
    crosses,
    display_names,
    empty_figure,
    line_chart,
    ranked_names,
    variant_line,
)
from ui.looks.palette import SPARE, WARN_COLOR, Look, looks_of
from ui.tables.csv_text import Cell, csv_text, number
from ui.tables.measured import holders, values_of

_BOUNDS = ("theta", "theta-hat", "relaxed theta")
_CHAIN_LOOKS = (
    ("head L1, measured", "lines", None),  # in the variant's own
    *((name, "markers", Look(*look)) for name, look in zip(_BOUNDS, SPARE, strict=False)),
)
_ARRAYS = ("head_l1", "theta", "theta_hat", "theta_relaxed", "sigma_stage1")


def bounds_figure(result: RunResult, variant: int) -> go.Figure:
    """The measured head L1 and its three upper bounds, heads ordered by the measured value.

    Definition: L, theta, theta-hat and relaxed theta of the paper's theorems 2 to 4 with the true
    attention of the first decoding step. Theta and theta-hat bound L always; the relaxed one is
    above theta-hat only where stage 1's mass sigma is above 0.5, so heads at or below it stand as
    crosses at the foot. Unit: L1, on a logarithmic axis, where what is not above 0 has no place.
    n = query heads of one prompt, one step.
    """
    found = result.variants[variant]
    title = f"{display_names(result.variants)[variant]}: bounds of the head L1"
    chain, check, sigma = chain_of(found), check_chain(found), found.analysis.get("sigma_stage1")
    if chain is None or check is None or sigma is None:
        return empty_figure(title)
    flat = chain.reshape(len(chain), -1)
    order = np.argsort(flat[0], kind="stable")
    order = order[np.isfinite(flat[:, order]).all(axis=0)]
    where = _places(chain[0], order)
    shown = np.where(flat > 0, flat, np.float32(np.nan))[:, order]
    measured = replace(looks_of(result.variants)[variant], dash="solid")
    hover: dict[str, Any] = {"customdata": where, "hovertemplate": "%{customdata}: %{y:.4g} L1"}
    traces = [
        variant_line(look or measured, name, values, mode=mode, marker={"size": 4}, **hover)
        for (name, mode, look), values in zip(_CHAIN_LOOKS, shown, strict=True)
    ]
    positive = shown[np.isfinite(shown)]
    foot = np.float32(positive.min() / 2 if positive.size else 1)
    traces.append(_uncovered(sigma.reshape(-1)[order], where, np.full(len(order), foot)))
    subtitle = f"{check.violations} violations in {check.covered:,} query heads with sigma > 0.5"
    # Plotly writes powers a quarter larger than other ticks.
    powers: dict[str, Any] = {"exponentformat": "power", "tickfont": {"size": 9.6}}
    axes = ("query heads, by measured L1", "L1")
    subtitle = f"{subtitle}; n = {check.heads:,}"
    return line_chart(title, subtitle, traces, axes, type="log", dtick=1, **powers)


def sigma_figure(result: RunResult, variant: int) -> go.Figure:
    """Attention mass of each head: of stage 1, of all that is kept, and the most of stage 1.

    Definition: sigma = sum of the decoding query's true attention over stage 1's entries, its own
    entry included; kept is the same over all entries kept; the oracle value takes as many
    entries as stage 1 by the true attention itself, so the gap is the observation window's error.
    The paper's assumption 1 is sigma > 0.5 (line); heads at or below it are crosses.
    Unit: share of 1. n = query heads of one prompt, one step.
    """
    title = f"{display_names(result.variants)[variant]}: attention mass of stage 1"
    sigma = values_of(result, variant, "sigma_stage1")
    if sigma is None:
        return empty_figure(title)
    flat = sigma.reshape(-1)
    order = np.argsort(flat, kind="stable")
    order = order[np.isfinite(flat[order])]
    where = _places(sigma, order)
    hover: dict[str, Any] = {"customdata": where, "hovertemplate": "%{customdata}: %{y:.3f}"}
    points: dict[str, Any] = {"mode": "markers", "marker": {"size": 5}} | hover
    kinds = (
        ("oracle", "sigma_oracle", ORACLE_LOOKS[0]),
        ("kept in all", "sigma_kept", Look(*SPARE[1])),
    )
    others = [(name, values_of(result, variant, key), look) for name, key, look in kinds]
    traces = [
        variant_line(look, name, each.reshape(-1)[order], **points)
        for name, each, look in others
        if each is not None
    ]
    own = looks_of(result.variants)[variant]
    traces.append(variant_line(own, "sigma, measured", flat[order], **hover))
    traces.append(_uncovered(flat[order], where, flat[order]))
    share = percent((flat[order] > ASSUMED_MASS).mean(), 1) if order.size else "none"
    oracle = others[0][1]
    if oracle is not None and order.size:
        share += f" (oracle {percent((oracle.reshape(-1)[order] > ASSUMED_MASS).mean(), 1)})"
    figure = line_chart(
        title,
        f"sigma > 0.5 in {share} of n = {order.size:,} heads",
        traces,
        ("query heads, by sigma", "attention mass"),
        range=[0, 1.02],
    )
    figure.add_hline(y=ASSUMED_MASS, line={"color": TEXT_COLOR, "dash": "dot", "width": 2})
    return figure


def tightness_figure(result: RunResult) -> go.Figure:
    """How near the measured head L1 comes to its bound theta, one curve per variant.

    Definition: for each x, the share of query heads whose L / theta is at most x; a bound that
    were reached everywhere would jump to 1 at x = 1. Unit: ratio. n = query heads, one step.
    """
    names, looks = ranked_names(result), looks_of(result.variants)
    hover = "head L1 / theta up to %{x:.3f}: %{y:.2f} of heads"
    traces, n = [], 0
    for index in holders(result, "theta"):
        if (each := tightness_of(result.variants[index])) is None:
            continue
        curve = np.sort(each[~np.isnan(each)])
        n = max(n, len(curve))
        share = np.arange(1, len(curve) + 1, dtype=np.float32) / max(len(curve), 1)
        more: dict[str, Any] = {"x": curve, "mode": "lines", "hovertemplate": hover}
        traces.append(variant_line(looks[index], names[index], share, **more))
    return line_chart(
        "Tightness of the bound: head L1 / theta",
        f"Share of n = {n:,} query heads at or below x",
        traces,
        ("head L1 / theta", "share of query heads"),
        range=[0, 1.02],
    )


def bounds_csv(result: RunResult) -> str:
    """Data of `bounds_figure` and `tightness_figure`: one line per variant and query head."""
    columns = ("variant", "spec", "layer", "head", *_ARRAYS, "tightness")
    return csv_text(columns, _rows(result))


def _rows(result: RunResult) -> Iterator[tuple[Cell, ...]]:
    for index in holders(result, "theta"):
        variant = result.variants[index]
        columns = [values_of(result, index, name) for name in _ARRAYS]
        columns.append(tightness_of(variant))
        shape = next(each.shape for each in columns if each is not None)
        for at in np.ndindex(*shape):
            cells = (None if each is None else number(each[at]) for each in columns)
            yield (index, variant.spec, *at, *cells)


def _places(values: Float32Array, order: NDArray[np.int64]) -> list[str]:
    """`layer 3, query head 1` of each flattened place."""
    heads = values.shape[1]
    return [f"layer {at // heads}, query head {at % heads}" for at in order]


def _uncovered(sigma: Float32Array, where: list[str], heights: Float32Array) -> go.Scatter:
    """Crosses at the heads that assumption 1 leaves out."""
    at = np.flatnonzero(sigma <= ASSUMED_MASS)
    hover = "%{customdata}: not covered by the theorem<extra></extra>"
    more: dict[str, Any] = {"customdata": [where[i] for i in at], "hovertemplate": hover}
    name = f"sigma at most 0.5: {len(at):,} query heads"
    return crosses(at.astype(np.int16), heights[at], WARN_COLOR, name=name, **more)
