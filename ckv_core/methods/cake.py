"""CAKE: attention and how it shifts within the window; layers share the budget by both.

The authors search tau1 and tau2 per model and budget; 1 is their default. They also evict while
generating, and keep a prompt whole that exceeds the budget by less than a window.
"""

import math
from fractions import Fraction
from functools import partial

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import number
from ckv_core.methods.parts.base import SINKS, BudgetRule, Candidates, Parameters, PerEntry
from ckv_core.methods.parts.rules import integer_shares
from ckv_core.methods.parts.views import LayerView
from ckv_core.methods.parts.window import (
    AUTHORS_KERNEL,
    AUTHORS_POOL,
    AUTHORS_WINDOW,
    GROUP,
    Window,
)

TAU_1 = number("tau1", 1.0, (0.01, 100.0)).means(
    "CAKE: root taken of the spread of a layer's attention before layers share the budget."
)
TAU_2 = number("tau2", 1.0, (0.01, 100.0)).means(
    "CAKE: root taken of the shift of a layer's attention before layers share the budget."
)


class Preferences(BudgetRule):
    """Layers in proportion to dispersion^(1/tau1) x shift^(1/tau2) (arXiv:2503.12491)."""

    parameters = (TAU_1, TAU_2)
    work = PerEntry(window=4)
    looks_at = "all layers"
    reads = ("window",)

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        total, window = candidates.layers * spare, candidates.scorer.queries(candidates.parameters)
        views = map(candidates.view, range(candidates.layers))
        statistics = [
            view.statistic(
                f"spread and shift {window}", partial(_spread_and_shift, view, window)
            ).tolist()
            for view in views
        ]
        powers = [1 / float(parameters[key.name]) for key in self.parameters]
        weights = [
            Fraction(math.prod(x**power for x, power in zip(pair, powers, strict=True)))
            for pair in statistics
        ]
        weights = weights if sum(weights) else [Fraction(1)] * len(weights)  # no attention varies
        shares = [weight / sum(weights) * total for weight in weights]
        budgets = integer_shares(shares, total, candidates.entries)
        return torch.tensor(budgets)[:, None].expand(-1, candidates.kv_heads)


def _spread_and_shift(view: LayerView, window: int) -> Tensor:
    """Entropy of the attention to the past, and variance over the window, each summed: [2]."""
    sums = torch.zeros(2, device=view.keys.device)
    for rows in view.window_rows(window):
        past = rows[:, : rows.shape[1] - window]
        sums[0] -= (past * (past + 1e-10).log()).sum()
        sums[1] += past.var(0).sum() if window > 1 else 0
    return sums


GAMMA = number("gamma", 200.0, (0.0, 1e6)).means(
    "CAKE: weight of the variance over the window's queries beside their mean."
)


class MeanAndVariance(Window):
    """Mean plus gamma times the variance over the window, smoothed, then grouped."""

    parameters = (AUTHORS_WINDOW, AUTHORS_KERNEL, AUTHORS_POOL, GROUP, GAMMA, SINKS)
    work = PerEntry(window=2, query_heads=2)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        evidence = view.window_attention(int(parameters["window"])).clone()
        for head, rows in enumerate(view.window_rows(int(parameters["window"]))):
            spread = rows[:, : evidence.shape[1]].var(0) if len(rows) > 1 else 0
            evidence[head] += float(parameters["gamma"]) * spread
        return evidence


register(
    name="cake",
    label="CAKE",
    summary="Window attention and its variance; layers with more spread and shift get more.",
    source="Qin et al. 2025, arXiv:2503.12491",
    scorer=MeanAndVariance(),
    budget_rule=Preferences(),
)
