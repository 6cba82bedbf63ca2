"""SnapKV's observation window: what the last prompt tokens attend to (arXiv:2404.14469)."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ckv_core.runtime.lazy_torch import check_shape


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


def window_rows(window_queries: Tensor, keys: Tensor, scaling: float) -> Iterator[Tensor]:
    """The attention of each query of the window to all entries that it may see.

    One query head at a time: of [window, prompt_len] float32 there are two, no more.

    Args:
        window_queries: as for `window_attention`.
        keys: as for `window_attention`.
        scaling: factor of the logits.

    Yields:
        Per query head [window, prompt_len] float32; rows sum to 1.
    """
    check_shape("window_queries", window_queries, "query_heads window head_dim", {})
    query_heads, window, _ = window_queries.shape
    kv_heads, prompt_len, _ = keys.shape
    group_size = query_heads // kv_heads
    future = torch.ones(window, window, dtype=torch.bool, device=keys.device).triu(1)
    for head in range(query_heads):
        logits = window_queries[head].float() @ keys[head // group_size].float().T
        logits *= scaling
        logits[:, prompt_len - window :].masked_fill_(future, -torch.inf)
        yield logits.softmax(-1)


def _mean(window_queries: Tensor, keys: Tensor, scaling: float, columns: int) -> Tensor:
    query_heads = window_queries.shape[0]
    mean = torch.empty(query_heads, columns, dtype=torch.float32, device=keys.device)
    for head, rows in enumerate(window_rows(window_queries, keys, scaling)):
        mean[head] = rows[:, :columns].mean(0)
    return mean
