"""LagKV's score: how an entry lies in the ranges of the next partition (arXiv:2504.04704)."""

from __future__ import annotations

from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.partitions import LAG, LAG_SINKS, scored_partitions
from ckv_core.methods.parts.views import LayerView, PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch


class LagRelative(Scorer):
    """How unevenly the channels lie in the next partition's ranges; the tail before all, newest."""

    name = "lag_relative"
    parameters = (LAG, LAG_SINKS)
    query_aware = False
    across_heads = False
    non_negative = True

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        kv_heads, entries = view.keys.shape[:2]
        part, count = scored_partitions(entries, parameters)
        newest = torch.arange(2, entries + 2, dtype=torch.float32, device=view.keys.device)
        scores = newest.repeat(kv_heads, 1)  # of the scored entries none is above 2
        for head in range(kv_heads if count else 0):
            scores[head, part] = 0
            for states in (view.keys[head], view.values[head]):
                cut = states[part.start : part.stop + int(parameters["lag"])].float()
                cut = cut.reshape(count + 1, -1, states.shape[-1])
                scores[head, part] += _spread(cut[:-1], cut[1:]).flatten()
        return scores

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        return 4 * 8 * shape.head_dim * shape.prompt_len


LAG_RELATIVE = LagRelative()


def _spread(states: Tensor, reference: Tensor) -> Tensor:
    """[partitions, lag], each row sums to 1; a channel that does not vary there counts as it is."""
    low, high = reference.amin(1, keepdim=True), reference.amax(1, keepdim=True)
    width = torch.where(high > low, high - low, 1)
    return ((states - low) / width).std(-1).softmax(-1)
