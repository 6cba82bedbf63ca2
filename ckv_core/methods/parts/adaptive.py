"""AdaKV: heads of a layer share its budget by how many top entries each one has."""

from __future__ import annotations

import math
from fractions import Fraction

from ckv_core.methods.parameters import choice, number
from ckv_core.methods.parts.base import BudgetRule, Candidates, Parameters
from ckv_core.methods.parts.shares import integer_shares
from ckv_core.methods.parts.views import PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch

SAFEGUARD = number(
    "safeguard", 0.2, (0.0, 1.0), "AdaKV: share of each head's budget that stays uniform."
)
SAFEGUARD_RULE = choice(
    "safeguard_rule",
    ("blend", "floor"),
    "AdaKV: that share is mixed into all budgets beyond what is always kept (blend), or is "
    "a floor of the whole budget, above which heads compete (kvpress).",
    kvpress="floor",
)


class Adaptive(BudgetRule):
    """The heads of a layer compete for its budget (arXiv:2407.11550)."""

    name = "adaptive"
    parameters = (SAFEGUARD, SAFEGUARD_RULE)
    compares_heads = True
    ranks_heads = True
    looks_at = "layer"

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        safeguard = float(parameters["safeguard"])
        if parameters["safeguard_rule"] == "floor":
            least = safeguarded(candidates)
            return floored_budgets(candidates.joint(), candidates.kv_heads, spare, least)
        return adaptive_budgets(candidates.joint(), candidates.kv_heads, spare, safeguard)

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        return 24 * shape.kv_heads * shape.prompt_len


ADAPTIVE = Adaptive()


def adaptive_budgets(order: Tensor, kv_heads: int, spare: int, safeguard: float) -> Tensor:
    """Head budgets beyond the protected entries (arXiv:2407.11550, Algorithm 1).

    c_h of a layer's top kv_heads * spare scores lie in head h; the head gets
    c_h * (1 - safeguard) + safeguard * spare, rounded by largest remainder.

    Args:
        order: [layers, kv_heads * evictable] int32, the entries of all heads of a layer, one head
            after the other, by falling pooled window attention.
        kv_heads: per layer.
        spare: mean entries per head.
        safeguard: share that stays uniform, 0 to 1.

    Returns:
        [layers, kv_heads] int64 on the CPU, each layer summing to kv_heads * spare.
    """
    total, evictable = kv_heads * spare, order.shape[-1] // kv_heads
    heads = order[:, :total] // max(evictable, 1)
    counts = torch.stack([(heads == head).sum(-1) for head in range(kv_heads)], dim=-1)
    uniform = Fraction(str(safeguard))
    budgets = [
        integer_shares(
            [count * (1 - uniform) + uniform * spare for count in layer], total, evictable
        )
        for layer in counts.tolist()
    ]
    return torch.tensor(budgets, dtype=torch.int64)


def safeguarded(candidates: Candidates) -> int:
    """Entries beyond the protected ones that every head is sure of; 0 without such a rule."""
    parameters = candidates.parameters
    if parameters.get("safeguard_rule") != "floor":
        return 0
    share = Fraction(str(parameters["safeguard"]))
    floor = math.floor((candidates.spare + candidates.protected) * share)
    floor = max(floor, 1) if share else 0
    return min(max(floor - candidates.protected, 0), candidates.spare)


def floored_budgets(order: Tensor, kv_heads: int, spare: int, least: int) -> Tensor:
    """As `adaptive_budgets`, the way kvpress shares them out.

    The first `least` entries of every head, 0 to `spare`, are granted; all others of the layer
    compete.
    """
    budgets = []
    for heads in order // max(order.shape[-1] // kv_heads, 1):
        granted = torch.zeros_like(heads, dtype=torch.bool)
        for head in range(kv_heads):
            own = heads == head
            granted |= own & (own.cumsum(-1) <= least)
        competing = heads[~granted][: kv_heads * (spare - least)]
        budgets.append(least + torch.bincount(competing, minlength=kv_heads).cpu())
    return torch.stack(budgets)
