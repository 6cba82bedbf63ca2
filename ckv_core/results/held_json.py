"""What a variant held while it generated, in the result JSON, both ways."""

from itertools import pairwise
from typing import Any

import numpy as np

from ckv_core.request.compare_request import MAX_NEW_TOKENS
from ckv_core.results.records import HeldSeries, ModelInfo
from ckv_core.runtime.json_fields import JsonField

_MAX_COUNT = 2**62


def held_json(held: HeldSeries | None) -> dict[str, Any] | None:
    """The series, and a row of step, layer, KV head and position for each eviction."""
    if held is None:
        return None
    return {
        "entries": list(held.entries),
        "cache_bytes": list(held.cache_bytes),
        "evicted": held.evictions().tolist(),
    }


def read_held(field: JsonField, model: ModelInfo, prompt_tokens: int) -> HeldSeries:
    """Undo `held_json`; no entry is evicted twice."""
    entries, sizes = (
        field[name].integers(0, _MAX_COUNT, MAX_NEW_TOKENS) for name in ("entries", "cache_bytes")
    )
    if len(entries) != len(sizes) or not entries:
        field.fail("as many entries as cache_bytes are expected, at least one")
    tokens = prompt_tokens + len(entries)
    ends = (len(entries), model.layers, model.kv_heads, tokens)
    rows = field["evicted"].items(model.layers * model.kv_heads * tokens)
    evicted = [
        tuple(item.integer(0, end - 1) for item, end in zip(row.items(4, 4), ends, strict=True))
        for row in rows
    ]
    if any(here >= there for here, there in pairwise(evicted)):
        field["evicted"].fail("ascending rows are expected")
    if len({row[1:] for row in evicted}) < len(evicted):
        field["evicted"].fail("each entry is expected once")
    data = np.array(evicted, "<u4").tobytes()
    return HeldSeries(entries=entries, cache_bytes=sizes, evicted=data)
