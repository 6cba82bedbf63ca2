"""What a variant's cache holds: entries per KV head in each layer."""

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ckv_core.results.events import RunResult
from ckv_core.results.records import RetainedSet
from ui.charts.layout import empty_figure, new_figure, ranked_names, rgba, variant_line
from ui.looks.palette import Look, looks_of

Counts = NDArray[np.int64]


def budgets_figure(result: RunResult) -> go.Figure:
    """Entries kept per KV head in each layer, one line per variant that evicts.

    Definition: line = mean over the layer's KV heads of the entries in the kept set; band = from
    the head that keeps fewest to the one that keeps most, drawn where they differ (AdaKV).
    Protected entries count. Layers not evicted are gaps; the full cache is not drawn, because it
    would press all others flat. Unit: entries. n = KV heads of a layer, one prompt.
    """
    title = "Entries kept per KV head"
    kept = {i: v.retained for i, v in enumerate(result.variants) if v.retained is not None}
    if not kept or result.model is None:
        return empty_figure(title, "No variant has evicted anything yet.")
    names, looks = ranked_names(result), looks_of(result.variants)
    subtitle = f"Line: mean of n = {result.model.kv_heads} KV heads; band: least to most"
    figure = new_figure(title, subtitle, legend_rows=len(kept))
    for index, retained in kept.items():
        counts = entry_counts(retained)
        whole = np.ones(result.model.layers, np.bool_)  # layers that no method may evict from
        whole[list(result.model.evictable_layers)] = False
        figure.add_traces(_band(looks[index], str(index), counts, whole))
        mean = np.where(whole, np.nan, counts.mean(axis=1)).astype(np.float32)
        line = variant_line(looks[index], names[index], mean, "entries per head")
        figure.add_trace(line.update(legendgroup=str(index)))
    figure.update_xaxes(title_text="layer")
    figure.update_yaxes(title_text="entries per KV head", rangemode="tozero")
    return figure


def entry_counts(retained: RetainedSet) -> Counts:
    """Entries kept per layer and KV head [layers, kv_heads]."""
    # Padding bits are 0, so the packed bytes can be counted as they are: 8 times less memory.
    rows = np.frombuffer(retained.bits, np.uint8)
    rows = rows.reshape(retained.layers, retained.kv_heads, -1)
    counts: Counts = np.bitwise_count(rows).sum(axis=-1, dtype=np.int64)
    return counts


def _band(look: Look, group: str, counts: Counts, whole: NDArray[np.bool_]) -> list[go.Scatter]:
    low, high = counts.min(axis=1), counts.max(axis=1)
    evicted = ~whole
    if np.array_equal(low[evicted], high[evicted]):
        return []
    layers = np.flatnonzero(evicted).astype(np.int16)
    return [
        go.Scatter(
            x=np.concatenate([layers, layers[::-1]]),
            y=np.concatenate([high[evicted], low[evicted][::-1]]).astype(np.int32),
            fill="toself",
            fillcolor=rgba(look.color, 0.18),
            mode="none",
            hoverinfo="skip",
            showlegend=False,
            legendgroup=group,
        )
    ]
