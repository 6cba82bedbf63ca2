"""Order of a row by its score: a method keeps the first entries of it."""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.parts.base import Candidates, Kept, Selector


class TopK(Selector):
    """Each head keeps the first entries of its order."""

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        return Kept(keep_first(candidates.first()[layers], head_budgets))


TOP_K = TopK()


def order(score: Tensor) -> Tensor:
    """Entries of each row by falling score, [..., entries] int32; ties: the earlier token."""
    return score.argsort(dim=-1, descending=True, stable=True).int()


def keep_first(order: Tensor, head_budgets: Tensor) -> Tensor:
    """Mark the first entries of each row's order, [..., kv_heads, evictable] bool.

    `head_budgets` are [..., kv_heads] int64, each from 0 to evictable.
    """
    first = order[..., : int(head_budgets.max())].long()
    places = torch.arange(first.shape[-1], device=order.device)
    chosen = places < head_budgets[..., None].to(order.device)
    return order.new_zeros(order.shape, dtype=torch.bool).scatter_(-1, first, chosen)
