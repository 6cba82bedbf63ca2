"""SnapKV's observation window: what the last prompt tokens attend to (arXiv:2404.14469)."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ckv_core.shapes import check_shape

Pool = Literal["max", "avg", "none"]
Reduce = Literal["mean", "max"]


def window_attention(window_queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Mean attention that the window's queries give to each earlier entry.

    The softmax runs in float32 over all keys that a query may see, the window's own included.

    Args:
        window_queries: [query_heads, window, head_dim], the prompt's last queries after RoPE.
        keys: [kv_heads, prompt_len, head_dim], after RoPE.
        scaling: factor of the logits.

    Returns:
        [query_heads, prompt_len - window] float32.
    """
    return _mean(window_queries, keys, scaling, keys.shape[1] - window_queries.shape[1])


def full_window_attention(window_queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """As `window_attention`, with the window's own columns: each row sums to 1.

    Returns:
        [query_heads, prompt_len] float32.
    """
    return _mean(window_queries, keys, scaling, keys.shape[1])


def _mean(window_queries: Tensor, keys: Tensor, scaling: float, columns: int) -> Tensor:
    check_shape("window_queries", window_queries, "query_heads window head_dim", {})
    query_heads, window, _ = window_queries.shape
    kv_heads, prompt_len, _ = keys.shape
    group_size = query_heads // kv_heads
    future = torch.ones(window, window, dtype=torch.bool, device=keys.device).triu(1)
    mean = torch.empty(query_heads, columns, dtype=torch.float32, device=keys.device)
    for head in range(query_heads):
        # One query head at a time: of [window, prompt_len] float32 there are two, no more.
        logits = window_queries[head].float() @ keys[head // group_size].float().T
        logits *= scaling
        logits[:, prompt_len - window :].masked_fill_(future, -torch.inf)
        mean[head] = logits.softmax(-1)[:, :columns].mean(0)
    return mean


def smooth(score: Tensor, kernel: int, pool: Pool) -> Tensor:
    """Pool a score along the prompt, stride 1, centred.

    `avg` divides by the kernel at the edges too (torch's default, as kvpress ships it), which
    damps the first entries; `max` does not.

    Args:
        score: [heads, entries].
        kernel: odd width in tokens.
        pool: max, avg or none.

    Returns:
        [heads, entries].
    """
    if pool == "none" or kernel == 1 or score.shape[-1] == 0:
        return score
    pooling = functional.max_pool1d if pool == "max" else functional.avg_pool1d
    return pooling(score[None], kernel, stride=1, padding=kernel // 2)[0]


def group_reduce(score: Tensor, kv_heads: int, how: Reduce) -> Tensor:
    """Combine the query heads that share a KV head.

    Args:
        score: [query_heads, entries].
        kv_heads: number of groups; query head h belongs to KV head h // group_size.
        how: mean or max.

    Returns:
        [kv_heads, entries].
    """
    grouped = score.view(kv_heads, -1, score.shape[-1])
    return grouped.mean(1) if how == "mean" else grouped.amax(1)
