"""Which prompt entries each method keeps: scores, budget and selection put together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
from transformers import DynamicCache

from tests.reference.agnostic_scores import key_difference
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

# What `kept_sets` knows: each alone and with CriticalKV.
_SCORED = ("snapkv", "pyramidkv", "adakv")
METHODS = (
    "full",
    "streaming_llm",
    "keydiff",
    *(name + end for name in _SCORED for end in ("", "+critical")),
)


@dataclass
class Prefilled:
    """The compressed prompt after one plain full-attention pass.

    Attributes:
        tap: attention of (at least) the last `window` queries of every variant.
        cache: keys and values of exactly the compressed prompt.
        norms: value norms by layer, computed once.
        behind: first position behind the context; `positions` where that is read afterwards.
    """

    model: Any
    tap: Tap
    cache: DynamicCache
    positions: int
    norms: dict[int, list[Row]]
    behind: int

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
    layers = evictable_layers(prefilled.model)
    budget = min(params["budget"], n)
    if method in ("streaming_llm", "keydiff"):
        for layer in layers:
            keys = prefilled.cache.layers[layer].keys[0].double().tolist()
            kept[layer] = [_without_queries(prefilled, method, row, params) for row in keys]
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


def _without_queries(
    prefilled: Prefilled, method: str, keys: list[Row], params: dict[str, Any]
) -> list[bool]:
    """Sinks, what stands behind the context where it is kept, and of the rest the best.

    StreamingLLM, method sheet 2.3: {0..S-1} and the newest. KeyDiff, 2.11: by the keys.
    """
    n, sinks = len(keys), params.get("sinks", 0)
    behind = prefilled.behind if params.get("keep_question") == "on" else n
    fixed = [i for i in range(n) if i < sinks or i >= behind]
    if params["budget"] < len(fixed):
        raise ValueError("the budget is below what is always kept")
    score = key_difference(keys) if method == "keydiff" else [float(i) for i in range(n)]
    free = [i for i in range(n) if i not in fixed]
    best = top_k([score[i] for i in free], min(params["budget"], n) - len(fixed))
    return _flags(n, fixed + [free[i] for i in best])


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
    layers = [pair for pair in zip(kept, other, strict=True) if None not in pair]
    return sum((np.array(mine) & np.array(theirs)).sum() for mine, theirs in layers) / entries(kept)


Scores = Sequence[Sequence[float]]  # [kv_heads][positions]


def shared(scores: Scores, candidates: Sequence[int]) -> dict[int, float]:
    """Mean of the heads' scores, of each position that may be evicted."""
    return {i: sum(row[i] for row in scores) / len(scores) for i in candidates}


def best(scores: dict[int, float], count: int) -> list[int]:
    """Of equal ones the earlier."""
    return sorted(scores, key=lambda i: (-scores[i], i))[:count]


def keep_layer(scores: Scores, protected: set[int], spare: int) -> set[int]:
    """One set for all heads."""
    candidates = [i for i in range(len(scores[0])) if i not in protected]
    return protected | set(best(shared(scores, candidates), spare))


def keep_pages(
    first: Scores, second: Scores, protected: set[int], spare: int, size: int, alpha: float
) -> set[int]:
    """Whole pages for all heads; with alpha 1 by the first score alone."""
    positions = len(first[0])
    pages: dict[int, list[int]] = {}
    for i in range(positions):
        pages.setdefault(i // size, []).append(i)
    held = {i // size for i in protected}
    kept = set(protected)

    def take(entries: Sequence[int], left: int) -> int:
        for i in entries:
            if left and i not in kept:
                kept.add(i)
                left -= 1
        return left

    for page in sorted(held):
        spare = take(pages[page], spare)
    free = [page for page in pages if page not in held]

    def ranked(scores: Scores) -> list[int]:
        of = shared(scores, range(positions))
        return best({p: sum(of[i] for i in pages[p]) / len(pages[p]) for p in free}, len(free))

    whole = min(spare // size, len(free))
    chosen = ranked(first)[: floor(alpha * whole)]
    chosen += [page for page in ranked(second) if page not in chosen][: whole - len(chosen)]
    for page in (*chosen, *ranked(first)):
        spare = take(pages[page], spare)
    return kept
