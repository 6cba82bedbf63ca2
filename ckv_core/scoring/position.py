"""StreamingLLM's evidence: newer entries rank higher, whatever they hold (arXiv:2309.17453)."""

import torch
from torch import Tensor


def recency(kv_heads: int, evictable: int, device: torch.device) -> Tensor:
    """Score that grows with the position.

    Returns:
        [kv_heads, evictable] float32.
    """
    return torch.arange(evictable, dtype=torch.float32, device=device).expand(kv_heads, -1)
