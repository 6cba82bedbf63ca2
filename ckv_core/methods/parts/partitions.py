"""Consecutive partitions of the prompt that each keep as much: LagKV's rule (arXiv:2504.04704)."""

from __future__ import annotations

from dataclasses import replace

from ckv_core.methods.parameters import Parameter, integer
from ckv_core.methods.parts.base import SINKS, Candidates, Kept, Parameters, Selector
from ckv_core.methods.parts.views import PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch

LAG = Parameter(
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
    needs_entries = True
    reads = ("lag", "sinks")

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        order = candidates.first()[layers]
        prompt_len = candidates.view(0).keys.shape[1]
        sinks, lag = (int(candidates.parameters[key]) for key in ("sinks", "lag"))
        scored, count = scored_partitions(prompt_len, candidates.parameters)
        position = torch.arange(prompt_len, device=order.device)[candidates.columns]
        length = int((position < scored.stop).sum())  # they come first among the candidates
        places = torch.arange(candidates.entries, device=order.device).expand(order.shape)
        turn = torch.empty_like(places).scatter(-1, order.long(), places)  # right for the tail
        if length:
            # Of which some entries may be protected: partitions are not all of one size then.
            partition = (position[:length] - sinks) // lag
            sizes = partition.bincount(minlength=count)
            in_partition = places[..., :length] - (sizes.cumsum(0) - sizes)[partition]
            by_turn = (partition * candidates.entries + turn[..., :length]).argsort(-1)
            rank = torch.empty_like(in_partition).scatter(-1, by_turn, in_partition)
            after_tail = candidates.entries - length
            turn[..., :length] = after_tail + (rank * count + partition).argsort(-1).argsort(-1)
        return Kept(turn < head_budgets[..., None].to(turn.device))

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        return 48 * shape.kv_heads * shape.prompt_len


PARTITIONS = Partitions()
