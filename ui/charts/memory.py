"""Chart of the memory that variants hold while they read the prompt in blocks."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ckv_core.experiment.summary import MIB
from ckv_core.records.events import RunResult
from ui.charts.layout import line_chart, ranked_names, variant_line
from ui.looks.palette import Look, looks_of
from ui.tables.csv_text import csv_text

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
