"""Perturbation by layer and after the last one, a line or a bar per variant."""

from typing import Literal

import numpy as np
import plotly.graph_objects as go

from ckv_core.analysis.rounding import in_type, short
from ckv_core.results.events import RunResult
from ckv_core.results.quantities import ARRAYS, QUANTITIES
from ckv_core.results.records import Float32Array
from ui.charts.layout import (
    TEXT_COLOR,
    empty_figure,
    name_bars,
    new_figure,
    ranked_names,
    variant_line,
)
from ui.looks.palette import SPARE, Look, bar_marker, looks_of
from ui.tables.measured import base_values, floor_values, holders, values_of
from ui.tables.summary import four_digits

NOT_MEASURED = "No perturbation has been measured yet."
NO_BASE = "No variant has its base, the same settings without CriticalKV, in this run."
ONE_STEP = "n = 1 decoding step; lower is closer to full"
Against = Literal["value", "reduction", "ratio"]
ORACLES = tuple(q for q in QUANTITIES.values() if q.group == "oracle")
FLOOR_LOOK = Look(TEXT_COLOR, "line-ew", "2px,2px")
# One colour, as the three are of one kind.
ORACLE_LOOKS = tuple(
    Look(SPARE[0][0], f"{shape}-open", dash)
    for shape, dash in (("pentagon", "longdash"), ("hexagram", "longdashdot"), ("star", "dot"))
)


def layer_figure(
    result: RunResult, name: str = "hidden_l1", against: Against = "value"
) -> go.Figure:
    """A quantity of each layer, one line per variant; by default the cascaded hidden L1.

    Definition: see ckv_core/results/quantities.py; hidden L1 is ||x_l - x^_l||_1 of the residual
    stream after block l, the variant's run against the full cache's, before the final norm. Against
    the base, which is the variant's own settings without CriticalKV: `reduction` is Q_base - Q and
    `ratio` is Q / Q_base, a gap where Q_base is 0 or where the two differ by no more than the
    rounding floor; variants without a base have no line. The floor of hidden L1 is a line of its
    own, on both sides of 0 for a reduction.
    Unit: the quantity's, or times, in the axis title. n = 1 decoding step of one prompt.
    """
    label, unit = ARRAYS[name].label, ARRAYS[name].unit_name
    compared = {index: _against(result, index, name, against) for index in holders(result, name)}
    lines = {index: values for index, values in compared.items() if values is not None}
    if not lines:
        return empty_figure(label, NOT_MEASURED if against == "value" else NO_BASE)
    subtitle, axis = {
        "value": (ONE_STEP, unit),
        "reduction": (
            "Base minus CriticalKV; n = 1 decoding step; higher is closer",
            f"base - CriticalKV, {unit}",
        ),
        "ratio": (
            "CriticalKV / base; n = 1 step; lower is closer; gap: below the floor",
            "times the base",
        ),
    }[against]
    names, looks = ranked_names(result), looks_of(result.variants)
    figure = new_figure(label, subtitle, legend_rows=len(lines))
    for index, values in lines.items():
        hover = "times" if against == "ratio" else unit
        figure.add_trace(variant_line(looks[index], names[index], values, hover))
    floor = floor_values(result, name)
    if floor is not None and against != "ratio":
        for sign in (1, -1) if against == "reduction" else (1,):
            line = variant_line(FLOOR_LOOK, f"rounding floor{in_type(result)}", sign * floor, unit)
            line.update(mode="lines", legendgroup="floor", showlegend=sign > 0)
            figure.add_trace(line)
    figure.update_xaxes(title_text="layer")
    figure.update_yaxes(title_text=axis, rangemode="tozero")
    return figure


def head_layer_figure(result: RunResult, *, oracles_of: int | None = None) -> go.Figure:
    """Mean isolated head L1 of each layer, one line per variant, with one variant's oracles.

    Definition: mean over the layer's query heads of ||(A - A')V W_O||_1 with the full run's
    query, keys and values, at the first decoding step; oracles choose, with that variant's
    budgets, by the true decode attention, by it times the value norm, or greedily. No method
    sees that attention, so they are limits, not rivals. Layers not evicted are gaps.
    Unit: L1 over the hidden size, no unit. n = query heads of a layer, one step, one prompt.
    """
    title = "Mean head L1 of each layer"
    indices = holders(result, "head_l1")
    if not indices:
        return empty_figure(title, NOT_MEASURED)
    names, looks = ranked_names(result), looks_of(result.variants)
    oracles = [] if oracles_of is None else _oracles(result, oracles_of)
    measured = [(i, values_of(result, i, "head_l1")) for i in indices]
    heads = next(values.shape[1] for _, values in measured if values is not None)
    subtitle = f"Isolated; mean of {heads} query heads, n = 1 decoding step"
    if oracles and oracles_of is not None:
        subtitle = f"Mean of {heads} heads, n = 1 step; oracle budgets: {names[oracles_of]}"
    figure = new_figure(title, subtitle, legend_rows=len(indices) + len(oracles))
    for index, values in measured:
        if values is not None:
            line = variant_line(looks[index], names[index], layer_means(values), "L1")
            figure.add_trace(line)
    for (label, values), look in zip(oracles, ORACLE_LOOKS, strict=False):
        figure.add_trace(variant_line(look, label, layer_means(values), "L1"))
    figure.update_xaxes(title_text="layer")
    figure.update_yaxes(title_text="mean head L1", rangemode="tozero")
    return figure


def final_figure(result: RunResult, name: str = "hidden_l1") -> go.Figure:
    """Distance from the full run after the last block, one bar per variant.

    Definition: the last value of a hidden quantity's line (before the final norm), or a
    `normed_` quantity (after it). Unit: the quantity's. n = 1 step of one prompt.
    """
    where = "after the final norm" if name.startswith("normed_") else "before the final norm"
    title = f"Final hidden state, {where}"
    measured = [(i, values_of(result, i, name)) for i in holders(result, name)]
    bars = {i: float(values[-1]) for i, values in measured if values is not None}
    if not bars:
        return empty_figure(title, NOT_MEASURED)
    names, looks = ranked_names(result), looks_of(result.variants)
    floor = floor_values(result, name)
    dotted = "" if floor is None else f"; dotted: rounding floor, {short(float(floor[-1]))}"
    figure = new_figure(title, f"Cascaded; lower is closer; n = 1 step{dotted}")
    figure.add_trace(
        go.Bar(
            x=np.array(list(bars.values()), np.float32),
            y=np.arange(len(bars), dtype=np.int16),
            orientation="h",
            customdata=[names[index] for index in bars],
            marker=bar_marker(
                [looks[index].color for index in bars], [looks[index].pattern for index in bars]
            ),
            text=[four_digits(value) for value in bars.values()],
            hovertemplate=f"%{{customdata}}: %{{x:.6g}} {ARRAYS[name].unit_name}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text=ARRAYS[name].unit_name)
    name_bars(figure, [names[index] for index in bars])
    if floor is not None:
        figure.add_vline(x=float(floor[-1]), line=FLOOR_LOOK.line())
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


def _against(result: RunResult, index: int, name: str, against: Against) -> Float32Array | None:
    """One line; None without a base where one is needed."""
    values = values_of(result, index, name)
    base = None if against == "value" else base_values(result, index, name)
    if values is None or (against != "value" and base is None):
        return None
    if base is None:
        return values
    if against == "reduction":
        return base - values
    floor = floor_values(result, name)
    level = False if floor is None else np.abs(values - base) <= floor
    return np.where(level, np.float32(np.nan), ratio(values, base))


def _oracles(result: RunResult, index: int) -> list[tuple[str, Float32Array]]:
    oracles = [(q.label, values_of(result, index, q.key)) for q in ORACLES]
    return [(label, values) for label, values in oracles if values is not None]
