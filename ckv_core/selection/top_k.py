"""Plain selection: the entries with the largest score."""

import torch
from torch import Tensor


def top_k(score: Tensor, head_budgets: Tensor) -> Tensor:
    """Mark the `head_budgets[h]` largest of row h; equal scores go to the earlier token.

    Args:
        score: [kv_heads, evictable].
        head_budgets: [kv_heads] int64, entries, each from 0 to evictable.

    Returns:
        keep_mask [kv_heads, evictable] bool.
    """
    order = score.argsort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(score.shape[-1], device=score.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(-1, order, ranks)
    return rank < head_budgets[:, None]
