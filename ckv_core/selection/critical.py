"""Perturbation-constrained selection: Algorithm 1 of CriticalKV (arXiv:2502.03805).

Symbols of the paper: A attention_score, ||V W_O||_1 value norm, b head_budgets,
alpha first_stage_ratio. As its Algorithm 2 prints it, stage 1 ranks by the pooled score and
stage 2 by the raw attention times the norm; which is which is decided by the scores given.
"""

from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from ckv_core.selection.top_k import keep_first


@dataclass(frozen=True, slots=True)
class Ranking:
    """Entries sorted by both scores, once for every budget and alpha.

    Attributes:
        first: [..., kv_heads, evictable] int32, entries by falling attention score.
        second: the same by falling stage-2 score.
    """

    first: Tensor
    second: Tensor

    def keep(self, head_budgets: Tensor, quotas: Tensor) -> Tensor:
        """Give each head's quota to A, the rest of its budget to A * ||V W_O||_1.

        Args:
            head_budgets: [..., kv_heads] int64, entries, each from 0 to evictable.
            quotas: [..., kv_heads] int64, entries of stage 1, each from 0 to the head's budget.

        Returns:
            keep_mask [..., kv_heads, evictable] bool; a head has its budget of True.
        """
        kept = keep_first(self.first, quotas)
        # Stage 2 stays within the first `budget` entries of its order: stage 1 took no more
        # than the quota of them, so the rest of the budget is left among them.
        best = self.second[..., : int(head_budgets.max())].long()
        taken = kept.gather(-1, best)
        place = (~taken).cumsum(-1)
        spare = (head_budgets - quotas)[..., None].to(place.device)
        return kept.scatter_(-1, best, taken | (place <= spare))


def first_stage(head_budgets: Tensor, first_stage_ratio: float) -> Tensor:
    """Floor of alpha * b per head, exact for the decimal alpha that the user wrote.

    Returns:
        [kv_heads] int64.
    """
    alpha = Fraction(str(first_stage_ratio))
    return head_budgets * alpha.numerator // alpha.denominator
