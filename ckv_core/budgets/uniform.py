"""Every head of every layer gets the same number of entries."""

import torch
from torch import Tensor


def uniform_budgets(layers: int, kv_heads: int, spare: int) -> Tensor:
    """Head budgets beyond the protected entries.

    Returns:
        [layers, kv_heads] int64, all equal to `spare`.
    """
    return torch.full((layers, kv_heads), spare, dtype=torch.int64)
