"""Perturbation-constrained selection: Algorithm 1 of CriticalKV (arXiv:2502.03805).

Symbols of the paper: A attention_score, ||V W_O||_1 value norm, b head_budgets,
alpha first_stage_ratio. As its Algorithm 2 prints it, stage 1 ranks by the pooled score and
stage 2 by the raw attention times the norm; which is which is decided by the scores given.
"""

from fractions import Fraction

import torch
from torch import Tensor

from ckv_core.scoring.layer_scores import LayerScores
from ckv_core.selection.top_k import top_k


def critical(scores: LayerScores, head_budgets: Tensor, first_stage_ratio: float) -> Tensor:
    """Give floor(alpha * b) of each head's budget to A, the rest to A * ||V W_O||_1.

    Args:
        scores: attention_score and critical_score, each [kv_heads, evictable].
        head_budgets: [kv_heads] int64, entries, each from 0 to evictable.
        first_stage_ratio: alpha, 0 to 1.

    Returns:
        keep_mask [kv_heads, evictable] bool; row h has head_budgets[h] True.

    Raises:
        ValueError: the scores lack the second stage (a programming error).
    """
    if scores.critical_score is None:
        raise ValueError("critical selection needs scores with a critical_score")
    first = first_stage(head_budgets, first_stage_ratio)
    stage_one = top_k(scores.attention_score, first)
    remaining = scores.critical_score.masked_fill(stage_one, -torch.inf)
    return stage_one | top_k(remaining, head_budgets - first)


def first_stage(head_budgets: Tensor, first_stage_ratio: float) -> Tensor:
    """Floor of alpha * b per head, exact for the decimal alpha that the user wrote.

    Returns:
        [kv_heads] int64.
    """
    alpha = Fraction(str(first_stage_ratio))
    return head_budgets * alpha.numerator // alpha.denominator
