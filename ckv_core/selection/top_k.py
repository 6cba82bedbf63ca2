"""Plain selection: the entries with the largest score."""

import torch
from torch import Tensor


def ranks(score: Tensor) -> Tensor:
    """Rank of each entry of a row, 0 for the largest; equal scores go to the earlier token.

    Args:
        score: [kv_heads, evictable].

    Returns:
        [kv_heads, evictable] int64.
    """
    order = score.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(score.shape[-1], device=score.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def top_k(score: Tensor, head_budgets: Tensor) -> Tensor:
    """Mark the `head_budgets[h]` largest of row h; equal scores go to the earlier token.

    Args:
        score: [kv_heads, evictable].
        head_budgets: [kv_heads] int64, entries, each from 0 to evictable.

    Returns:
        keep_mask [kv_heads, evictable] bool.
    """
    return ranks(score) < head_budgets[:, None]
