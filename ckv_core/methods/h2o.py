"""H2O: half of the budget for the newest entries, half for those attended to most so far.

Heads that share a KV head share their mean attention. The version of kvpress, without the newest
half, is `observed_attention`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parts.base import Candidates, Kept, Parameters, Scorer, Selector
from ckv_core.methods.parts.layout import page_size
from ckv_core.methods.parts.steps import StepPolicy, StepView, most_each_step
from ckv_core.methods.parts.top_k import order
from ckv_core.methods.parts.views import Chunk, LayerView, Observer, PromptShape

_FLOAT = 4  # bytes
# Attention that exists at a time: of so many queries of a KV head's group, for a CPU's cache; on a
# GPU, where launches cost more, of so many queries of all heads as these numbers hold.
_QUERIES = 64
_CUDA_LOGITS = 2**26


@dataclass(frozen=True, slots=True)
class AccumulatedAttention:
    """Per query head and entry, the attention that all queries of the prompt give to it.

    The attention of a block of queries is written out from the log-sum-exp, summed and forgotten:
    the matrix of all queries by all entries never exists.
    """

    kind: ClassVar[str] = "accumulated attention"

    def size(self, query_heads: int, head_dim: int, prompt_len: int) -> tuple[int, ...]:
        return query_heads, prompt_len

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        from ckv_core.base.devices import is_cuda_like  # noqa: PLC0415 - it loads torch
        from ckv_core.methods.attention import products  # noqa: PLC0415 - it loads torch

        queries = chunk.queries.view(len(chunk.keys), -1, *chunk.queries.shape[1:])
        totals = chunk.log_sum_exp.view(*queries.shape[:3], 1)
        sums = statistic.view(len(chunk.keys), -1, statistic.shape[1])
        heads, block = 1, _QUERIES
        if is_cuda_like(queries.device):
            heads, row = len(queries), len(statistic) * chunk.keys.shape[1]
            block = max(1, _CUDA_LOGITS // row)
        places = product(range(0, queries.shape[2], block), range(0, len(queries), heads))
        for first, head in places:
            own = slice(head, head + heads)
            some = slice(first, min(first + block, queries.shape[2]))
            seen, count = chunk.start + some.stop, some.stop - first
            # A KV head's queries are one matrix: no query head needs a copy of the keys.
            logits = products(queries[own, :, some].flatten(1, 2), chunk.keys[own, :seen])
            weights = chunk.scaling.logits_(logits.view(-1, queries.shape[1], count, seen))
            weights.sub_(totals[own, :, some]).exp_()
            later = torch.ones(count, count, dtype=torch.bool, device=logits.device).triu_(1)
            weights[..., seen - count :].masked_fill_(later, 0)
            sums[own, :, :seen] += weights.sum(2)

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        row = shape.query_heads * shape.prompt_len
        logits = row // shape.kv_heads * min(_QUERIES, chunk)
        if shape.on_cuda:
            logits = min(row * chunk, max(row, _CUDA_LOGITS))
        return _FLOAT * 3 * logits


ACCUMULATED = AccumulatedAttention()


_TOTAL = "attention"


class Accumulated(Scorer):
    """The attention that all of the prompt's queries gave an entry, summed."""

    non_negative = True

    def observes(self, parameters: Parameters) -> tuple[Observer, ...]:
        return (ACCUMULATED,)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        return _grouped(view)


class HalfRecent(Selector):
    """The newest entries for half of each head's budget, the rest by the order of the others.

    Half of the whole budget: a method's own sinks lie in the other half, its window in this one.
    Protected passages of a request are taken off the budget before it is halved.
    """

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        parameters = candidates.parameters
        own = candidates.scorer.protects(parameters)
        last = sum(-part.start for part in own.values() if part.start < 0)
        first = max((part.stop for part in own.values() if part.start >= 0), default=0)
        size = page_size(parameters) or 1  # then budgets are of pages
        half = (size * head_budgets + min(first + last, candidates.protected)) // 2
        newest = ((half - last) // size).clamp(min=0).minimum(head_budgets)
        return Kept(_half_recent(candidates.first()[layers].long(), head_budgets, newest))


class HeavyHitters(StepPolicy):
    """H2O's choice after every step, with the attention of the new queries added up."""

    needs_equal = True
    needs_probabilities = True

    def observes(self, parameters: Parameters) -> tuple[Observer, ...]:
        return (ACCUMULATED,)

    def begins_with(self, view: LayerView, parameters: Parameters) -> Mapping[str, Tensor]:
        return {_TOTAL: _grouped(view)}

    def most(self, kept: int, generated: int, parameters: Parameters) -> int:
        return most_each_step(kept, generated, parameters)

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        kv_heads, entries = view.positions.shape
        if view.probabilities is None:
            return None
        total = view.carried[_TOTAL] + view.probabilities.view(kv_heads, -1, entries).mean(1)
        view.carried[_TOTAL] = total
        budget = int(parameters["budget"])
        if entries <= budget:
            return None
        budgets = torch.full((kv_heads,), budget, device=total.device)
        return _half_recent(order(total).long(), budgets, budgets // 2)


def _grouped(view: LayerView) -> Tensor:
    """Accumulated attention, mean over the query heads that share a KV head."""
    seen = view.observed(ACCUMULATED)
    return seen.view(view.kv_heads, -1, seen.shape[-1]).mean(1)


def _half_recent(ranked: Tensor, budgets: Tensor, newest: Tensor) -> Tensor:
    """Mark the newest entries, and the first of the others in an order.

    Args:
        ranked: [..., heads, entries] int64, best first; the result is shaped alike.
        budgets: [..., heads] int64, each from 0 to entries.
        newest: shaped alike, how many of these entries are the newest, whatever their rank.
    """
    budgets, newest = (each.to(ranked.device)[..., None] for each in (budgets, newest))
    entries = ranked.shape[-1]
    recent = torch.arange(entries, device=ranked.device) >= entries - newest
    is_recent = recent.gather(-1, ranked)
    place = (~is_recent).cumsum(-1)  # among the others, from 1 on
    chosen = is_recent | (place <= budgets - newest)
    return torch.zeros_like(chosen).scatter(-1, ranked, chosen)


register(
    name="h2o",
    label="H2O",
    summary="Half of what it keeps is the newest; the rest was attended to most so far.",
    source="Zhang et al. 2023, arXiv:2306.14048",
    scorer=Accumulated(),
    selector=HalfRecent(),
    policy=HeavyHitters(),
)
