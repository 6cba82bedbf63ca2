"""A line or a bar per variant: perturbation, entries kept by layer, fidelity, memory in blocks."""

import html
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ckv_core.experiment.rounding import in_type, short
from ckv_core.experiment.summary import MIB, four_digits
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import ANALYSIS_ARRAYS, ARRAYS
from ckv_core.records.records import Float32Array, RetainedSet
from ui.charts.layout import (
    TEXT_COLOR,
    bar_chart,
    crosses,
    line_chart,
    ranked_names,
    rgba,
    variant_line,
)
from ui.looks.palette import SPARE, Look, bar_marker, looks_of
from ui.tables.csv_text import csv_text
from ui.tables.measured import base_values, floor_values, holders, values_of

Against = Literal["value", "reduction", "ratio"]
Counts = NDArray[np.int64]
ORACLES = tuple(q for q in ANALYSIS_ARRAYS.values() if q.group == "oracle")
FLOOR_LOOK = Look(TEXT_COLOR, "line-ew", "2px,2px")
# One colour, as both are of one kind.
ORACLE_LOOKS = tuple(
    Look(SPARE[0][0], f"{shape}-open", dash)
    for shape, dash in (("pentagon", "longdash"), ("hexagram", "longdashdot"))
)


def layer_figure(
    result: RunResult, quantity: str = "hidden_l1", against: Against = "value"
) -> go.Figure:
    """A quantity of each layer, one line per variant; by default the cascaded hidden L1.

    Definition: see ckv_core/records/metrics.py; hidden L1 is ||x_l - x^_l||_1 of the residual
    stream after block l, the variant's run against the full cache's, before the final norm. Against
    the base, which is the variant's own settings without CriticalKV: `reduction` is Q_base - Q and
    `ratio` is Q / Q_base, a gap where Q_base is 0 or where the two differ by no more than the
    rounding floor; variants without a base have no line. The floor of hidden L1 is a line of its
    own, on both sides of 0 for a reduction.
    Unit: the quantity's, or times, in the axis title. n = 1 decoding step of one prompt.
    """
    unit = ARRAYS[quantity].unit_name
    compared = {
        index: _against(result, index, quantity, against) for index in holders(result, quantity)
    }
    subtitle, axis, hover = {
        "value": ("n = 1 decoding step; lower is closer to full", unit, unit),
        "reduction": (
            "Base minus CriticalKV; n = 1 decoding step; higher is closer",
            f"base - CriticalKV, {unit}",
            unit,
        ),
        "ratio": (
            "CriticalKV / base; n = 1 step; lower is closer; gap: below the floor",
            "times the base",
            "times",
        ),
    }[against]
    lines = _lines(result, compared, hover)
    floor = floor_values(result, quantity)
    if lines and floor is not None and against != "ratio":
        name = f"rounding floor{in_type(result)}"
        more: dict[str, Any] = {"mode": "lines", "legendgroup": "floor"}
        lines.append(variant_line(FLOOR_LOOK, name, floor, unit, **more))
        if against == "reduction":
            lines.insert(-1, variant_line(FLOOR_LOOK, name, -floor, unit, showlegend=False, **more))
    return line_chart(ARRAYS[quantity].label, subtitle, lines, ("layer", axis))


def head_layer_figure(result: RunResult, variant: int | None = None) -> go.Figure:
    """Mean isolated head L1 of each layer, one line per variant, with the oracles of `variant`.

    Definition: mean over the layer's query heads of ||(A - A')V W_O||_1 with the full run's
    query, keys and values, at the first decoding step; oracles choose, with that variant's
    budgets, by the true decode attention, by it times the value norm, or greedily. No method sees
    that attention, so they are limits. Layers not evicted are gaps. n = query heads of a layer.
    """
    heads = {index: values_of(result, index, "head_l1") for index in holders(result, "head_l1")}
    measured = {index: each for index, each in heads.items() if each is not None}
    lines = _lines(result, {index: layer_means(each) for index, each in measured.items()}, "L1")
    count = next((each.shape[1] for each in measured.values()), 0)
    subtitle = f"Isolated; mean of {count} query heads, n = 1 decoding step"
    if variant is not None:
        of = ranked_names(result)[variant]
        subtitle = f"Mean of {count} heads, n = 1 step; oracle budgets: {of}"
        for q, look in zip(ORACLES, ORACLE_LOOKS, strict=True):
            if (values := values_of(result, variant, q.key)) is not None:
                lines.append(variant_line(look, q.label, layer_means(values), "L1"))
    return line_chart("Mean head L1 of each layer", subtitle, lines, ("layer", "mean head L1"))


def final_figure(result: RunResult, quantity: str = "hidden_l1") -> go.Figure:
    """Distance from the full run after the last block, one bar per variant.

    Definition: the last value of a hidden quantity's line (before the final norm), or a
    `normed_` quantity (after it). Unit: the quantity's. n = 1 step of one prompt.
    """
    where = "after the final norm" if quantity.startswith("normed_") else "before the final norm"
    unit = ARRAYS[quantity].unit_name
    measured = {index: values_of(result, index, quantity) for index in holders(result, quantity)}
    bars = {index: float(each[-1]) for index, each in measured.items() if each is not None}
    names, looks = ranked_names(result), looks_of(result.variants)
    floor = floor_values(result, quantity)
    dotted = "" if floor is None else f"; dotted: rounding floor, {short(float(floor[-1]))}"
    subtitle = f"Cascaded; lower is closer; n = 1 step{dotted}"
    labels, own = [names[index] for index in bars], [looks[index] for index in bars]
    series = {
        "x": np.array(list(bars.values()), np.float32),
        "customdata": labels,
        "marker": bar_marker([look.color for look in own], [look.pattern for look in own]),
        "text": [four_digits(value) for value in bars.values()],
        "hovertemplate": f"%{{customdata}}: %{{x:.6g}} {unit}<extra></extra>",
    }
    figure = bar_chart(f"Final hidden state, {where}", subtitle, labels, series)
    figure.update_xaxes(title_text=unit)
    if floor is not None:
        figure.add_vline(x=float(floor[-1]), line=FLOOR_LOOK.line())
    return figure


def budgets_figure(result: RunResult) -> go.Figure:
    """Entries kept per KV head in each layer, one line per variant that evicts.

    Definition: line = mean over the layer's KV heads of the entries in the kept set; band = from
    the head that keeps fewest to the one that keeps most, drawn where they differ (AdaKV).
    Protected entries count. Layers not evicted are gaps; the full cache is not drawn, because it
    would press all others flat. Unit: entries. n = KV heads of a layer, one prompt.
    """
    kept = {i: v.retained for i, v in enumerate(result.variants) if v.retained is not None}
    names, looks = ranked_names(result), looks_of(result.variants)
    evictable = list(result.model.evictable_layers) if result.model else []
    traces = []
    for index, retained in kept.items():
        counts = entry_counts(retained)
        mean = np.full(len(counts), np.nan, np.float32)
        mean[evictable] = counts[evictable].mean(axis=1)
        more: dict[str, Any] = {"legendgroup": str(index)}
        traces += _band(looks[index], counts[evictable], np.array(evictable, np.int16), more)
        traces.append(variant_line(looks[index], names[index], mean, "entries per head", **more))
    heads = result.model.kv_heads if result.model else 0
    subtitle = f"Line: mean of n = {heads} KV heads; band: least to most"
    axes = ("layer", "entries per KV head")
    return line_chart("Entries kept per KV head", subtitle, traces, axes)


def fidelity_figure(result: RunResult) -> go.Figure:
    """KL at each token of the full cache's text; a cross where the first choice is another.

    Definition: sum p log(p/q) of the full cache's and the variant's next-token distributions, both
    after the same tokens; see docs/reference/definitions.md. n = the tokens of one text.
    """
    names, looks = ranked_names(result), looks_of(result.variants)
    unit = ARRAYS["forced_kl"].unit_name
    traces, positions = [], 0
    for index in holders(result, "forced_kl"):
        variant, look = result.variants[index], looks[index]
        arrays, kl = variant.analysis, variant.analysis["forced_kl"]
        positions = len(kl)
        tokens = np.arange(1, positions + 1, dtype=np.int16)
        other = arrays.get("forced_top1", np.ones_like(kl)) == 0
        # The full cache's first choices are its own text; a run may hold no such variant.
        texts = [step.reference[0].text if step.reference else "" for step in variant.forced_steps]
        words = [f"{at} {html.escape(repr(text))}" for at, text in enumerate(texts, 1)]
        of: dict[str, Any] = {"legendgroup": str(index)}
        more: dict[str, Any] = {"x": tokens, "mode": "lines", "customdata": words}
        more["hovertemplate"] = f"token %{{customdata}}: %{{y:.4g}} {unit}"
        traces += [
            variant_line(look, names[index], kl, **more, **of),
            crosses(tokens[other], kl[other], look.color, showlegend=False, hoverinfo="skip", **of),
        ]
    return line_chart(
        "Fidelity on the full cache's text",
        f"n = {positions:,} tokens; cross: a different top token",
        traces,
        ("token of the full cache's text", f"KL ({unit})"),
    )


def entry_counts(retained: RetainedSet) -> Counts:
    """Entries kept per layer and KV head [layers, kv_heads]."""
    # Padding bits are 0, so the packed bytes can be counted as they are: 8 times less memory.
    rows = np.frombuffer(retained.bits, np.uint8)
    rows = rows.reshape(retained.layers, retained.kv_heads, -1)
    counts: Counts = np.bitwise_count(rows).sum(axis=-1, dtype=np.int64)
    return counts


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


def _lines(
    result: RunResult, values: Mapping[int, Float32Array | None], unit: str
) -> list[go.Scatter]:
    names, looks = ranked_names(result), looks_of(result.variants)
    return [
        variant_line(looks[index], names[index], each, unit)
        for index, each in values.items()
        if each is not None
    ]


def _band(
    look: Look, counts: Counts, layers: NDArray[np.int16], more: Mapping[str, str]
) -> list[go.Scatter]:
    low, high = counts.min(axis=1), counts.max(axis=1)
    if np.array_equal(low, high):
        return []
    return [
        go.Scatter(
            x=np.concatenate([layers, layers[::-1]]),
            y=np.concatenate([high, low[::-1]]).astype(np.int32),
            fill="toself",
            fillcolor=rgba(look.color, 0.18),
            mode="none",
            hoverinfo="skip",
            showlegend=False,
            **more,
        )
    ]


# --- chart of the memory that variants hold while they read the prompt in blocks -----------

_FULL = Look("#6b7280", "circle", "dash")


def read_in_blocks(result: RunResult) -> list[int]:
    """Indices of variants whose memory is known block by block."""
    return [i for i, v in enumerate(result.variants) if v.memory and v.memory.read and v.receipt]


def memory_figure(result: RunResult) -> go.Figure:
    """Bytes held after each block, a line per variant, and the full cache's by then.

    Definition: keys and values of evictable layers, counted in the tensors; the full cache's by the
    tokens read. Unit: MiB. n = one prompt.
    """
    names, looks, traces = ranked_names(result), looks_of(result.variants), []
    series = {index: _series(result, index) for index in read_in_blocks(result)}
    for index, (read, held, _) in series.items():
        traces.append(_line(looks[index], names[index], read, held))
    read, _, full = max(series.values(), key=lambda each: len(each[0]))
    traces.append(_line(_FULL, "Full cache", (0, *read), (0, *full), mode="lines"))
    subtitle = "Evictable layers, counted after each block; n = one prompt"
    axes = ("tokens read", "MiB held")
    return line_chart("Memory while the prompt is read", subtitle, traces, axes)


def memory_csv(result: RunResult) -> str:
    """Data of `memory_figure`: a line per variant and block."""
    rows = [
        (index, result.variants[index].spec, *line)
        for index in read_in_blocks(result)
        for line in zip(*_series(result, index), strict=True)
    ]
    return csv_text(("variant", "spec", "tokens_read", "held_bytes", "full_cache_bytes"), rows)


def _line(
    look: Look, name: str, read: Sequence[int], held: Sequence[int], **more: str
) -> go.Scatter:
    hover = "%{x:,} tokens read: %{y:.2f} MiB"
    return variant_line(look, name, np.array(held) / MIB, x=read, hovertemplate=hover, **more)


def _series(result: RunResult, index: int) -> tuple[Sequence[int], Sequence[int], list[int]]:
    """Tokens read, bytes held, and bytes of the full cache by then, one a block."""
    memory, receipt = result.variants[index].memory, result.variants[index].receipt
    if memory is None or receipt is None:
        return (), (), []
    full = [receipt.full_cache_bytes * n // memory.read[-1] for n in memory.read]
    return memory.read, memory.held, full
