"""Every head of every layer gets the same number of entries."""

from __future__ import annotations

from ckv_core.methods.parts.base import BudgetRule, Candidates, Parameters
from ckv_core.runtime.lazy_torch import Tensor, torch


class Uniform(BudgetRule):
    """The mean budget for everyone."""

    name = "uniform"
    equal = True

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        return torch.full((candidates.layers, candidates.kv_heads), spare, dtype=torch.int64)


UNIFORM = Uniform()
