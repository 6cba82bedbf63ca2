"""DefensiveKV's score: the most that any query of the window asked of an entry, by its value."""

from __future__ import annotations

from ckv_core.methods.parts.base import SINKS, Parameters
from ckv_core.methods.parts.views import LayerView, PromptShape
from ckv_core.methods.parts.window import (
    AUTHORS_KERNEL,
    AUTHORS_WINDOW,
    Window,
    group_reduce,
    smooth,
)
from ckv_core.runtime.lazy_torch import Tensor, torch


class WorstCase(Window):
    """Maximum over window and query group, no less than the head's mean, times the value norm.

    Each query's attention is smoothed and scaled back to its mass; the norms of a token's values
    are shares of their sum over the KV heads.
    """

    name = "worst_case"
    parameters = (AUTHORS_WINDOW, AUTHORS_KERNEL, SINKS)
    needs_norms = True

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        window = int(parameters["window"])
        group_size = view.query_heads // view.kv_heads
        entries = view.keys.shape[1] - window
        worst = view.value_norms().new_zeros(view.kv_heads, entries)
        for head, rows in enumerate(view.window_rows(window)):
            past = rows[:, :entries]
            smoothed = self.smooth(past, parameters)
            masses = past.sum(-1, keepdim=True), smoothed.sum(-1, keepdim=True)
            smoothed *= masses[0] / masses[1].clamp(min=torch.finfo(past.dtype).tiny)
            place = head // group_size
            worst[place] = worst[place].maximum(smoothed.amax(0))
        worst = worst.maximum(worst.mean(-1, keepdim=True))
        norms = group_reduce(view.value_norms()[:, :entries], view.kv_heads, "mean")
        return worst * norms / norms.sum(0).clamp(min=torch.finfo(norms.dtype).tiny)

    def smooth(self, evidence: Tensor, parameters: Parameters) -> Tensor:
        return smooth(evidence, int(parameters["kernel"]), "avg")

    def group(self, evidence: Tensor, kv_heads: int, parameters: Parameters) -> Tensor:
        return group_reduce(evidence, kv_heads, "max")

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        rows = 3 * int(parameters["window"]) + 4 * shape.query_heads
        return 4 * rows * shape.prompt_len


WORST_CASE = WorstCase()
