"""Budgets by the highest scores: heads get as many entries as they have among them, no floor."""

from __future__ import annotations

from typing import ClassVar, Literal

from ckv_core.methods.parts.base import BudgetRule, Candidates, Parameters
from ckv_core.methods.parts.views import PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch


class TopScores(BudgetRule):
    """All heads of a layer compete."""

    name = "top_scores"
    ranks_heads = True
    looks_at: ClassVar[Literal["nothing", "layer", "all layers"]] = "layer"

    def taken(self, candidates: Candidates, place: int) -> Tensor | None:
        """What heads keep in any case, [kv_heads, entries] bool; only the rest competes."""
        return None

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        if self.looks_at == "layer":
            layers = range(candidates.layers)
            return torch.cat([self._counts(candidates, [place], spare) for place in layers])
        return self._counts(candidates, list(range(candidates.layers)), spare)

    def _counts(self, candidates: Candidates, places: list[int], spare: int) -> Tensor:
        """Of these layers together, [layers, kv_heads] int64 on the CPU."""
        each = [candidates.scores(place) for place in places]
        scores = torch.stack([one.to(each[0].device) for one in each])  # layers may lie apart
        taken = torch.zeros(scores.shape[:2], dtype=torch.int64)
        for row, place in enumerate(places):
            mask = self.taken(candidates, place)
            if mask is None:
                break
            scores[row].masked_fill_(mask.to(scores.device), -torch.inf)
            taken[row] = mask.sum(-1).cpu()
        left = scores.shape[0] * scores.shape[1] * spare - int(taken.sum())
        return taken + top_counts(scores.flatten(0, 1), left).view_as(taken)

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        layers = shape.layers if self.looks_at == "all layers" else 1
        return 24 * layers * shape.kv_heads * shape.prompt_len


class TopScoresOfAll(TopScores):
    """The heads of all layers compete."""

    name = "top_scores_of_all"
    looks_at = "all layers"


def top_counts(scores: Tensor, total: int) -> Tensor:
    """How many of the `total` highest of [rows, entries] scores lie in each row, [rows] on the CPU.

    Ties go to the earlier row.
    """
    if not total:
        return torch.zeros(len(scores), dtype=torch.int64)
    border = scores.flatten().kthvalue(scores.numel() - total + 1).values
    above, equal = (scores > border).sum(-1).cpu(), (scores == border).sum(-1).cpu()
    before = equal.cumsum(0) - equal
    return above + (total - above.sum() - before).clamp(min=0).minimum(equal)
