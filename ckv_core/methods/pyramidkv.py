"""PyramidKV: SnapKV's scores with budgets that fall from the lowest layer to the highest.

The authors' code rounds down, so that totals exceed the budget by up to an eighth; here they are
exact. On short prompts kvpress falls back to SnapKV (`pyramid_window=inside`).
"""

from fractions import Fraction

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import choice, number
from ckv_core.methods.parts.base import BudgetRule, Candidates, Counts, Parameters
from ckv_core.methods.parts.press import SNAPKV, Press
from ckv_core.methods.parts.rules import integer_shares
from ckv_core.methods.parts.window import WINDOW_SCORER

BETA = number("beta", 20.0, (1.0, 1000.0)).means(
    "PyramidKV: steepness; the last layer gets 1/beta of the mean budget."
)
PYRAMID_WINDOW = choice("pyramid_window", ("beyond", "inside"), kvpress="inside").means(
    "PyramidKV: layers share what is left beyond the window (beyond), or all of it (inside). Under "
    "inside, shares are equal where the last one would not hold the window."
)


class Pyramid(BudgetRule):
    """Layer budgets by place alone (arXiv:2406.02069)."""

    parameters = (BETA, PYRAMID_WINDOW)

    def layer_budgets(self, counts: Counts, spare: int, parameters: Parameters) -> list[int]:
        inside = counts.protected if parameters["pyramid_window"] == "inside" else 0
        beta = float(parameters["beta"])
        return pyramid_budgets(counts.layers, spare, counts.entries, beta, inside)

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        per_layer = self.layer_budgets(candidates, spare, parameters)
        return torch.tensor(per_layer)[:, None].expand(-1, candidates.kv_heads)


def pyramid_budgets(
    layers: int, spare: int, evictable: int, beta: float, inside: int = 0
) -> list[int]:
    """Each layer's heads' budget beyond the protected entries (arXiv:2406.02069, as its code has).

    With mean = spare + inside, the last layer gets lo = mean / beta, the first
    hi = 2 * mean - lo; hi is clipped to `evictable`, then lo = 2 * mean - hi, so the mean stays.
    Where lo is then below `inside`, all layers get the same.

    `inside` are protected entries that count into the shares, as kvpress has it.
    """
    mean = spare + inside
    high = min(2 * mean - Fraction(mean) / Fraction(str(beta)), Fraction(evictable))
    low = 2 * mean - high
    if low < inside or high < low or layers == 1:
        high = low = Fraction(mean)  # as for a beta of 1
    step = (high - low) / max(layers - 1, 1)
    shares = [high - layer * step - inside for layer in range(layers)]
    return integer_shares(shares, layers * spare, evictable)


register(
    name="pyramidkv",
    label="PyramidKV",
    summary="SnapKV's scores; lower layers get more of the budget than higher ones.",
    source="Zhang et al. 2024, arXiv:2406.02069",
    scorer=WINDOW_SCORER,
    budget_rule=Pyramid(),
    press=Press("PyramidKVPress", {**SNAPKV.arguments, "beta": "beta"}),
)
