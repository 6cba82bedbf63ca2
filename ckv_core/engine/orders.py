"""Orders of a prompt's entries by score: sorted once, kept with the prefill for later runs.

Budget, alpha and budget rule do not change an order, so a run that changes them sorts nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ckv_core.engine.prefill import OrderKey, Prefill
from ckv_core.scoring.layer_scores import window_scores
from ckv_core.scoring.position import recency
from ckv_core.selection.top_k import order
from ckv_core.variants import VariantSpec

_BASE_KEYS = ("window", "kernel", "pool", "group", "sinks")
_CRITICAL_KEYS = (*_BASE_KEYS, "stage2", "norm", "product", "epsilon")


def order_keys(spec: VariantSpec) -> tuple[OrderKey, ...]:
    """Equal for orders that are equal; a variant by position alone needs none that is kept."""
    if spec.method.scorer != "window":
        return ()
    keys = [_key("first", spec, _BASE_KEYS)]
    if spec.method.budget_rule == "adaptive":
        keys.append(_key("joint", spec, _BASE_KEYS))
    if spec.critical:
        keys.append(_key("second", spec, _CRITICAL_KEYS))
    return tuple(keys)


def first_order(spec: VariantSpec, prefill: Prefill) -> Tensor:
    """By the score that ranks plain top-k and stage 1.

    Returns:
        [evictable layers, kv_heads, evictable] int32.
    """
    if spec.method.scorer == "position":
        info = prefill.loaded.info
        evictable = prefill.prompt_len - spec.protected["sinks"]
        newest = order(recency(info.kv_heads, evictable, prefill.layers[0].keys.device))
        return newest.expand(len(info.evictable_layers), -1, -1)
    return prefill.order(_key("first", spec, _BASE_KEYS), lambda: _sort(spec, prefill))


def joint_order(spec: VariantSpec, prefill: Prefill) -> Tensor:
    """By the same score, the heads of a layer together, one head's entries after the other's.

    Returns:
        [evictable layers, kv_heads * evictable] int32.
    """
    key = _key("joint", spec, _BASE_KEYS)
    return prefill.order(key, lambda: _sort(spec, prefill, joint=True)).flatten(1)


def second_order(spec: VariantSpec, prefill: Prefill) -> Tensor:
    """By the score of stage 2, of a variant with CriticalKV.

    Returns:
        [evictable layers, kv_heads, evictable] int32.
    """
    key = _key("second", spec, _CRITICAL_KEYS)
    return prefill.order(key, lambda: _sort(spec, prefill, critical=True))


def _sort(
    spec: VariantSpec, prefill: Prefill, *, joint: bool = False, critical: bool = False
) -> Tensor:
    """Score and sort layer by layer: only one layer's scores exist at a time."""
    info = prefill.loaded.info
    evictable = prefill.prompt_len - sum(spec.protected.values())
    shape = (len(info.evictable_layers), info.kv_heads, evictable)
    orders = torch.empty(shape, dtype=torch.int32, device=prefill.layers[0].keys.device)
    for place, layer in enumerate(info.evictable_layers):
        attention = prefill.window_attention(layer, int(spec.params["window"]))
        norms = prefill.value_norms(layer) if critical else None
        scores = window_scores(attention, norms, info.kv_heads, spec.params)
        score = scores.attention_score if scores.critical_score is None else scores.critical_score
        orders[place] = order(score.flatten() if joint else score).view(shape[1:])
    return orders


def _key(kind: str, spec: VariantSpec, keys: Sequence[str]) -> OrderKey:
    return (kind, *(spec.params.get(key, "") for key in keys))
