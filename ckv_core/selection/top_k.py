"""Order of a row by its score: a method keeps the entries of lowest rank."""

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
