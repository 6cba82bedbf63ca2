"""What scores are made of: the window's attention (SnapKV, arXiv:2404.14469), norms of V W_O."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ckv_core.runtime.devices import is_cuda_like
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
    """As `window_attention`, with the window's own columns: [query_heads, prompt_len], sum 1."""
    return _mean(window_queries, keys, scaling, keys.shape[1])


def window_rows(window_queries: Tensor, keys: Tensor, scaling: float) -> Iterator[Tensor]:
    """The attention of each query of the window to all entries that it may see.

    Per query head [window, prompt_len] float32, of which there are two, no more; rows sum to 1.
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


def value_norm(values: Tensor, output_weight: Tensor, order: int = 1) -> Tensor:
    """Norm of each value row through its query head's slice of W_O (L1: CriticalKV, eq. 8).

    Computed in blocks of positions: the [query_heads, prompt_len, hidden] product never exists.

    Args:
        values: [kv_heads, prompt_len, value_dim].
        output_weight: [hidden, query_heads * value_dim], the weight of o_proj.
        order: 1 for L1, 2 for L2.

    Returns:
        [query_heads, prompt_len] float32.
    """
    check_shape("values", values, "kv_heads prompt_len value_dim", {})
    kv_heads, prompt_len, value_dim = values.shape
    hidden, width = output_weight.shape
    group_size = width // value_dim // kv_heads
    # [kv_heads, value_dim, group_size * hidden]: one product for all query heads of a KV head.
    weight = output_weight.view(hidden, kv_heads, group_size, value_dim).permute(1, 3, 2, 0)
    weight = weight.flatten(2).to(values.dtype)
    norms = torch.empty(kv_heads, prompt_len, group_size, dtype=torch.float32, device=values.device)
    positions = max(1, block_rows(on_cuda=is_cuda_like(values.device)) // group_size)
    for head in range(kv_heads):
        for start in range(0, prompt_len, positions):
            block = values[head, start : start + positions] @ weight[head]
            norms[head, start : start + positions] = torch.linalg.vector_norm(
                block.view(-1, group_size, hidden), ord=order, dim=-1, dtype=torch.float32
            )
    return norms.transpose(1, 2).flatten(0, 1)


def block_rows(*, on_cuda: bool) -> int:
    """Rows of V W_O that exist at a time: few for a CPU's cache, many for a GPU's launches."""
    return 16_384 if on_cuda else 1_024
