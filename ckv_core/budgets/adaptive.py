"""AdaKV: heads of a layer share its budget by how many top entries each one has."""

from fractions import Fraction

import torch
from torch import Tensor

from ckv_core.budgets.shares import integer_shares


def adaptive_budgets(attention_score: Tensor, spare: int, safeguard: float) -> Tensor:
    """Head budgets of one layer beyond the protected entries (arXiv:2407.11550, Algorithm 1).

    c_h of the layer's top kv_heads * spare scores lie in head h; the head gets
    c_h * (1 - safeguard) + safeguard * spare, rounded by largest remainder.

    Args:
        attention_score: [kv_heads, evictable] pooled window attention.
        spare: mean entries per head.
        safeguard: share that stays uniform, 0 to 1.

    Returns:
        [kv_heads] int64, summing to kv_heads * spare.
    """
    kv_heads, evictable = attention_score.shape
    order = attention_score.flatten().argsort(descending=True, stable=True)
    top = order[: kv_heads * spare] // max(evictable, 1)
    counts = torch.bincount(top, minlength=kv_heads).tolist()
    uniform = Fraction(str(safeguard))
    shares = [count * (1 - uniform) + uniform * spare for count in counts]
    return torch.tensor(integer_shares(shares, kv_heads * spare, evictable), dtype=torch.int64)
