"""LAVa: window attention times the head's largest value; heads and layers share by those scores.

Heads of a layer compete as in AdaKV; a layer gets more where its scores have more entropy. A part
of the budget is shared equally: within the layer here, over all layers in the authors' code.
"""

from fractions import Fraction

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parts.base import (
    SINKS,
    BudgetRule,
    Candidates,
    Parameters,
    PerEntry,
    Scorer,
)
from ckv_core.methods.parts.rules import SAFEGUARD, adaptive_budgets, integer_shares
from ckv_core.methods.parts.views import LayerView
from ckv_core.methods.parts.window import AUTHORS_WINDOW, GROUP, KERNEL, POOL, Window


class LargestValue(Window):
    """Mean window attention, smoothed, times the largest L1 norm of a value; maximum of a group."""

    parameters = (
        AUTHORS_WINDOW,
        KERNEL.but(kvpress=None),
        POOL.but(kvpress=None),
        GROUP.but(default="max"),
        SINKS,
    )

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        attention = super().evidence(view, parameters)
        largest = view.values[:, : attention.shape[1]].float().abs().sum(-1).amax(-1)
        return attention * largest.repeat_interleave(len(attention) // len(largest))[:, None]


class Entropies(BudgetRule):
    """Layers in proportion to the entropy of their scores; their heads compete (2509.09754)."""

    parameters = (SAFEGUARD,)
    work = PerEntry(kv_heads=8)
    compares_heads = True
    ranks_heads = True
    looks_at = "all layers"

    def unfit(self, scorer: Scorer) -> str:
        reason = "" if scorer.non_negative else "has scores below 0, which have no entropy"
        return super().unfit(scorer) or reason

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        places, total = range(candidates.layers), candidates.layers * spare
        entropies = [Fraction(_entropy(candidates.scores(place))) for place in places]
        entropies = entropies if any(entropies) else [Fraction(1)] * len(entropies)
        shares = [each / sum(entropies) * total for each in entropies]
        by_layer = integer_shares(shares, total, candidates.entries)
        joint, uniform = candidates.joint(), float(parameters["safeguard"])
        return torch.cat(
            [
                adaptive_budgets(joint[place : place + 1], candidates.kv_heads, own, uniform)
                for place, own in zip(places, by_layer, strict=True)
            ]
        )


def _entropy(scores: Tensor) -> float:
    """Of all scores of a layer as shares of their sum; 0 of one entry alone."""
    shares = scores.double() / scores.double().sum().clamp(min=1e-300)
    return max(0.0, float(-torch.special.xlogy(shares, shares).sum()))


register(
    name="lava",
    label="LAVa",
    summary="Window attention times a head's largest value; layers of more entropy get more.",
    source="Shen et al. 2025, arXiv:2509.09754",
    scorer=LargestValue(),
    budget_rule=Entropies(),
)
