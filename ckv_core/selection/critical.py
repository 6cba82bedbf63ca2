"""Perturbation-constrained selection: Algorithm 1 of CriticalKV (arXiv:2502.03805).

Symbols of the paper: A attention_score, ||V W_O||_1 value norm, b head_budgets,
alpha first_stage_ratio. As its Algorithm 2 prints it, stage 1 ranks by the pooled score and
stage 2 by the raw attention times the norm; which is which is decided by the scores given.
"""

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from ckv_core.scoring.layer_scores import LayerScores


@dataclass(frozen=True, slots=True)
class Ranking:
    """Both scores of one layer, sorted once for every budget and alpha.

    Attributes:
        first: [kv_heads, evictable] int64, rank of each entry by the attention score.
        order: [kv_heads, evictable] int64, entries by falling stage-2 score.
    """

    first: Tensor
    order: Tensor

    @classmethod
    def of(cls, scores: LayerScores, first: Tensor) -> "Ranking":
        """Sort the second score; equal ones go to the earlier token.

        Args:
            scores: of one layer.
            first: ranks by the attention score, as `ranks` gives them.

        Raises:
            ValueError: the scores lack the second stage (a programming error).
        """
        if scores.critical_score is None:
            raise ValueError("critical selection needs scores with a critical_score")
        order = scores.critical_score.argsort(dim=-1, descending=True, stable=True)
        return cls(first, order)

    def keep(self, head_budgets: Tensor, quotas: Tensor) -> Tensor:
        """Give each head's quota to A, the rest of its budget to A * ||V W_O||_1.

        Args:
            head_budgets: [kv_heads] int64, entries, each from 0 to evictable.
            quotas: [kv_heads] int64, entries of stage 1, each from 0 to the head's budget.

        Returns:
            keep_mask [kv_heads, evictable] bool; row h has head_budgets[h] True.
        """
        stage_one = self.first < quotas[:, None]
        taken = stage_one.gather(-1, self.order)
        # The best of what stage 1 left over, in the order of the second score.
        place = (~taken).cumsum(-1)
        kept = taken | (place <= (head_budgets - quotas)[:, None])
        return torch.empty_like(kept).scatter_(-1, self.order, kept)


def first_stage(head_budgets: Tensor, first_stage_ratio: float) -> Tensor:
    """Floor of alpha * b per head, exact for the decimal alpha that the user wrote.

    Returns:
        [kv_heads] int64.
    """
    alpha = Fraction(str(first_stage_ratio))
    return head_budgets * alpha.numerator // alpha.denominator
