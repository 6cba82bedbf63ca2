"""Which prompt entries each method keeps: scores, budget and selection put together."""

import math
from dataclasses import dataclass
from typing import Any

from transformers import DynamicCache

from tests.reference.budgets import (
    adaptive_heads,
    exact,
    kvpress_heads,
    kvpress_pyramid,
    pyramid_layers,
)
from tests.reference.forward import Kept, Tap, evictable_layers
from tests.reference.scores import (
    Row,
    first_stage_score,
    layer_values,
    output_weight,
    second_stage_score,
    value_norms,
    window_mean,
)
from tests.reference.selection import top_k, two_stage

# What `kept_sets` knows: CriticalKV stands over whatever scores entries by attention.
_SCORED = ("snapkv", "pyramidkv", "adakv")
METHODS = ("full", "streaming_llm", *(name + end for name in _SCORED for end in ("", "+critical")))


@dataclass
class Prefilled:
    """The compressed prompt after one plain full-attention pass.

    Attributes:
        tap: attention of (at least) the last `window` queries of every variant.
        cache: keys and values of exactly the compressed prompt.
        norms: value norms by layer, computed once.
    """

    model: Any
    tap: Tap
    cache: DynamicCache
    positions: int
    norms: dict[int, list[Row]]

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        config = self.model.config
        return int(config.num_attention_heads // config.num_key_value_heads)

    def value_norms(self, layer: int) -> list[Row]:
        """nu of one layer over the whole compressed prompt."""
        if layer not in self.norms:
            self.norms[layer] = value_norms(
                layer_values(self.cache, layer),
                output_weight(self.model, layer),
                self.model.config.num_attention_heads,
            )
        return self.norms[layer]


def kept_sets(prefilled: Prefilled, method: str, critical: bool, params: dict[str, Any]) -> Kept:
    """The kept entries of one variant; `params` holds every parameter, `budget` in tokens."""
    n, config = prefilled.positions, prefilled.model.config
    kept: Kept = [None] * config.num_hidden_layers
    heads = config.num_key_value_heads
    layers = evictable_layers(prefilled.model)
    budget = min(params["budget"], n)
    if method == "streaming_llm":
        positions = _sinks_and_newest(n, budget, params["sinks"])
        for layer in layers:
            kept[layer] = [_flags(n, positions)] * heads
        return kept
    sinks, window = params["sinks"], params["window"]
    p, capacity = budget - window - sinks, n - window - sinks
    if p < 0 or capacity < 0:
        raise ValueError("the budget or the prompt is below the protected entries")
    layer_p = [p] * len(layers)
    if method == "pyramidkv":
        shape = (p, len(layers), params["beta"], capacity)
        inside = params["pyramid_window"] == "inside"
        layer_p = kvpress_pyramid(*shape, window + sinks) if inside else pyramid_layers(*shape)
    protected = [*range(sinks), *range(n - window, n)]
    for layer, share in zip(layers, layer_p, strict=True):
        chosen = _layer_selection(prefilled, layer, (method, critical, share), params)
        kept[layer] = [_flags(n, protected + [sinks + i for i in row]) for row in chosen]
    return kept


def _layer_selection(
    prefilled: Prefilled, layer: int, variant: tuple[str, bool, int], params: dict[str, Any]
) -> list[list[int]]:
    """Chosen candidates per KV head of one layer, counted from the first unprotected one."""
    method, critical, share = variant
    sinks, group_size = params["sinks"], prefilled.group_size
    attention = window_mean(prefilled.tap.attention[layer], params["window"])
    # smoothing sees the sinks' columns; only then are the sinks left out of the candidates
    first = [row[sinks:] for row in first_stage_score(attention, group_size, params)]
    counts, protected, safe = [share] * len(first), sinks + params["window"], 0
    if method == "adakv" and params["safeguard_rule"] == "floor":
        counts = kvpress_heads(first, share, params["safeguard"], protected)
        safe = math.floor((share + protected) * exact(params["safeguard"]))
    elif method == "adakv":
        counts = adaptive_heads(first, share, params["safeguard"])
    if not critical:
        return [top_k(row, count) for row, count in zip(first, counts, strict=True)]
    norms = [row[: len(attention[0])] for row in prefilled.value_norms(layer)]
    second = [row[sinks:] for row in second_stage_score(attention, norms, group_size, params)]
    counted = (protected, safe) if params["stage1_counts_window"] == "on" else (0, 0)
    return [
        two_stage(a, b, count, params["alpha"], counted)
        for a, b, count in zip(first, second, counts, strict=True)
    ]


def _sinks_and_newest(n: int, budget: int, sinks: int) -> list[int]:
    """StreamingLLM, method sheet 2.3: {0..S-1} and the last budget - S."""
    if budget < sinks:
        raise ValueError("the budget is below the sinks")
    return [*range(min(sinks, n)), *range(n - (budget - sinks), n)]


def _flags(n: int, positions: list[int]) -> list[bool]:
    chosen = set(positions)
    return [position in chosen for position in range(n)]


def max_window(all_params: list[dict[str, Any]]) -> int:
    """Rows of attention that a prefill must hand out."""
    return max([1, *(params.get("window", 1) for params in all_params)])


def entries(kept: Kept) -> int:
    """Kept entries over evictable layers and KV heads."""
    return sum(sum(map(sum, layer)) for layer in kept if layer is not None)


def agreement(kept: Kept, other: Kept) -> float:
    """Share of `kept`'s entries that `other` keeps too, evictable layers only."""
    same = sum(
        a and b
        for mine, theirs in zip(kept, other, strict=True)
        if mine is not None and theirs is not None
        for row, other_row in zip(mine, theirs, strict=True)
        for a, b in zip(row, other_row, strict=True)
    )
    return same / entries(kept)
