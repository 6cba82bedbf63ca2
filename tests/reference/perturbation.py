"""How far eviction moves the outputs at the first decoding step, design section 2."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from tests.reference.forward import Kept, Tap, evictable_layers
from tests.reference.scores import layer_values, output_weight, value_norms


def head_l1(
    model: Any, full_tap: Tap, full_cache: DynamicCache, kept: Kept | None
) -> list[list[float] | None]:
    """Isolated head L1: ||(A - A') V W_O||_1 with the full run's query, keys and values.

    A' = N * A / sum(N * A), N true for kept entries, for every entry after the compressed
    prompt and for the step's own entry. None for layers from which nothing is evicted.
    """
    result: list[list[float] | None] = []
    for layer, attention in enumerate(full_tap.attention):
        layer_kept = None if kept is None else kept[layer]
        if layer_kept is None:
            result.append(None)
            continue
        values = layer_values(full_cache, layer).double()
        weight = output_weight(model, layer).double()
        query_heads, head_dim = attention.shape[0], values.shape[-1]
        group_size = query_heads // values.shape[0]
        row = []
        for head in range(query_heads):
            a = attention[head, 0].double()
            keep = torch.ones(len(a), dtype=torch.float64)
            flags = layer_kept[head // group_size]
            keep[: len(flags)] = torch.tensor(flags, dtype=torch.float64)
            a_evicted = keep * a / (keep * a).sum()
            w_head = weight[:, head * head_dim : (head + 1) * head_dim].T
            moved = (a - a_evicted) @ values[head // group_size] @ w_head
            row.append(float(moved.abs().sum()))
        result.append(row)
    return result


def output_sizes(model: Any, full_tap: Tap, full_cache: DynamicCache) -> list[list[float]]:
    """C = sum_i A_i ||v_i W_O||_1 per evictable layer and query head: the size of roundings."""
    result: list[list[float]] = [[] for _ in full_tap.attention]
    for layer in evictable_layers(model):
        attention = full_tap.attention[layer]
        values = layer_values(full_cache, layer)
        norms = value_norms(values, output_weight(model, layer), attention.shape[0])
        result[layer] = [
            sum(a * nu for a, nu in zip(row[0].tolist(), norm, strict=True))
            for row, norm in zip(attention, norms, strict=True)
        ]
    return result


def hidden_l1(full_tap: Tap, tap: Tap) -> list[float]:
    """Cascaded ||x_l - x^_l||_1 of the residual stream after block l, before the final norm."""
    return [
        float((full.double() - evicted.double()).abs().sum())
        for full, evicted in zip(full_tap.hidden, tap.hidden, strict=True)
    ]


def kl_divergence(full_logits: Tensor, logits: Tensor) -> float:
    """KL(full || variant) of the next-token distributions, nats."""
    log_p = torch.log_softmax(full_logits.double(), dim=-1)
    log_q = torch.log_softmax(logits.double(), dim=-1)
    return float((log_p.exp() * (log_p - log_q)).sum())
