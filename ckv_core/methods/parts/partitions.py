"""Consecutive partitions of the prompt that each keep as much: LagKV's rule (arXiv:2504.04704)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckv_core.knobs import Knob, integer
from ckv_core.lazy_torch import torch
from ckv_core.methods.parts.base import SINKS, Candidates, Kept, Parameters, Selector
from ckv_core.methods.parts.views import PromptShape

if TYPE_CHECKING:
    from torch import Tensor

LAG = Knob(
    name="lag",
    help="LagKV: tokens of a partition; each is scored against the next one.",
    default=128,
    parse=integer("lag", 2, 65536),
)
LAG_SINKS = replace(SINKS, default=16, kvpress=4)


def scored_partitions(entries: int, parameters: Parameters) -> tuple[slice, int]:
    """What has a full partition after it, and how many partitions that is."""
    sinks, lag = int(parameters["sinks"]), int(parameters["lag"])
    count = max((entries - sinks) // lag - 1, 0)
    return slice(sinks, sinks + count * lag), count


class Partitions(Selector):
    """First the tail, newest first; then one entry of each partition after another, best first.

    So partitions keep equally many, the earlier ones one more where it does not come out even.
    The same sets follow from kvpress's rule, one top-k over ranks within partitions.
    """

    name = "partitions"

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        order = candidates.first()[layers]
        sinks, lag = (int(candidates.parameters[key]) for key in ("sinks", "lag"))
        scored, count = scored_partitions(sinks + candidates.entries, candidates.parameters)
        length = scored.stop - scored.start  # they come first among the candidates
        places = torch.arange(candidates.entries, device=order.device).expand(order.shape)
        turn = torch.empty_like(places).scatter(-1, order.long(), places)  # right for the tail
        if count:
            rank = turn[..., :length].reshape(*turn.shape[:-1], count, lag).argsort(-1).argsort(-1)
            partition = torch.arange(count, device=order.device)[:, None]
            after_tail = candidates.entries - length
            turn[..., :length] = after_tail + (rank * count + partition).flatten(-2)
        return Kept(turn < head_budgets[..., None].to(turn.device))

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        return 48 * shape.kv_heads * shape.prompt_len


PARTITIONS = Partitions()
