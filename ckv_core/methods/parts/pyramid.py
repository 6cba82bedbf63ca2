"""PyramidKV: layer budgets fall arithmetically from the first layer to the last."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from ckv_core.knobs import Knob, number
from ckv_core.lazy_torch import torch
from ckv_core.methods.parts.base import BudgetRule, Candidates, Parameters
from ckv_core.methods.parts.shares import integer_shares

if TYPE_CHECKING:
    from torch import Tensor

BETA = Knob(
    name="beta",
    help="PyramidKV: steepness; the last layer gets 1/beta of the mean budget.",
    default=20.0,
    parse=number("beta", 1.0, 1000.0),
)


class Pyramid(BudgetRule):
    """Layer budgets by place alone (arXiv:2406.02069)."""

    name = "pyramid"
    knobs = (BETA,)

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        shape = (candidates.layers, candidates.kv_heads)
        return pyramid_budgets(*shape, spare, candidates.entries, float(parameters["beta"]))


PYRAMID = Pyramid()


def pyramid_budgets(layers: int, kv_heads: int, spare: int, evictable: int, beta: float) -> Tensor:
    """Head budgets beyond the protected entries (arXiv:2406.02069, as its code computes them).

    The last layer gets lo = spare / beta, the first hi = 2 * spare - lo; hi is clipped to
    `evictable`, then lo = 2 * spare - hi, so the mean stays `spare`.

    Args:
        layers: evictable layers.
        kv_heads: KV heads per layer; all heads of a layer get the same.
        spare: mean entries per head.
        evictable: entries that a head has to choose from.
        beta: steepness, >= 1; 1 is uniform.

    Returns:
        [layers, kv_heads] int64, summing to layers * kv_heads * spare.
    """
    low = Fraction(spare) / Fraction(str(beta))
    high = min(2 * spare - low, Fraction(evictable))
    low = 2 * spare - high
    step = (high - low) / max(layers - 1, 1)
    shares = [high - layer * step for layer in range(layers)] if layers > 1 else [Fraction(spare)]
    per_layer = integer_shares(shares, layers * spare, evictable)
    return torch.tensor(per_layer, dtype=torch.int64)[:, None].expand(layers, kv_heads)
