"""RocketKV: SnapKV's entries are held, and each step reads the most promising of them.

As in the authors' code the budget is what a step reads: half of it entries, half the bounds of keys
that choose them. Held is (n / b)^(1 - a) times as much, with a = 0.2 + 0.06 log2(n / b), at most
0.8. What follows the prompt is read whole, and all where the budget covers what is held.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parts.base import Candidates, Parameters
from ckv_core.methods.parts.rules import Uniform
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.store import Segment, Store
from ckv_core.methods.parts.views import LayerView
from ckv_core.methods.parts.window import AUTHORS_KERNEL, AUTHORS_WINDOW, POOL, Window, group_reduce
from ckv_core.methods.quest import SparseSegment


class GroupedWindow(Window):
    """Window attention, the mean of a group's heads, then smoothed."""

    parameters = (AUTHORS_WINDOW, AUTHORS_KERNEL.but(default=63), POOL.but(kvpress=None))

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        mean = self.group(self.evidence(view, parameters), view.kv_heads, parameters)
        return self.smooth(mean, parameters)

    def group(self, evidence: Tensor, kv_heads: int, parameters: Parameters) -> Tensor:
        return group_reduce(evidence, kv_heads, "mean")


class HeldForReading(Uniform):
    """As many entries as the two stages hold for a budget that a step reads."""

    def holds(self, budget: int, prompt_len: int, parameters: Parameters) -> int:
        ratio = max(1.0, prompt_len / budget)
        first = min(0.2 + 0.06 * math.log2(ratio), 0.8)
        return max(budget, int(prompt_len / ratio**first))

    def notes(self, candidates: Candidates, parameters: Parameters) -> tuple[str, ...]:
        held = candidates.spare + candidates.protected
        return (
            f"{held:,} entries of each KV head are held; a step reads the requested bytes of them. "
            "Head L1 is not known, and bounds are of what is held.",
        )


@dataclass(frozen=True, slots=True)
class ChunkedSegment(SparseSegment):
    """Plain entries, and of each chunk the bounds of its keys; chunks of one have none.

    Attributes:
        least, most: [heads, chunks, head_dim], of each channel.
        chunk: entries of one; the last may be shorter.
        channels: that a step reads of the bounds.
        read: entries of each head that a single token reads.
    """

    least: Tensor
    most: Tensor
    chunk: int
    channels: int
    read: int

    @property
    def read_bytes(self) -> int:
        if self.read >= self.length:
            return self.keys.nbytes + self.values.nbytes
        bounds = self.least if self.chunk > 1 else self.keys
        entries = (self.keys.nbytes + self.values.nbytes) // self.length * self.read
        return entries + bounds.nbytes // bounds.shape[2] * self.channels

    def keep(self, places: Tensor) -> Self:
        kept = self.taken(places)
        least, most = _bounds(kept.keys, self.chunk)
        return replace(self, keys=kept.keys, values=kept.values, least=least, most=most)

    def attend(self, queries: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
        if queries.shape[1] != self.group or self.read >= self.length:
            return super(ChunkedSegment, self).attend(queries, scaling)
        return self.taken(self.best(queries, scaling)).attend(queries, scaling)

    def best(self, queries: Tensor, scaling: Scaling) -> Tensor:
        """The entries that queries [heads, group, head_dim] read, [heads, read] int64, in order.

        The largest bounds of the group's sum of queries, in the channels where queries are largest.
        """
        exact = queries.float()
        sizes = exact.abs()
        channels = sizes.mean(1, keepdim=True).topk(self.channels, sorted=False).indices
        some = torch.take_along_dim(exact, channels, 2)
        if self.chunk == 1:
            bounds = torch.take_along_dim(self.keys, channels, 2).float()
        else:
            is_more = torch.take_along_dim(exact.sum(1, keepdim=True) > 0, channels, 2)
            most, least = (
                torch.take_along_dim(each, channels, 2).float() for each in (self.most, self.least)
            )
            bounds = torch.where(is_more, most, least)
        logits = (some @ bounds.transpose(1, 2)).repeat_interleave(self.chunk, -1)
        share = (some.abs().sum(-1, keepdim=True) / sizes.sum(-1, keepdim=True)).sqrt()
        logits = logits[..., : self.length] * scaling.factor / share
        chances = logits.softmax(-1).mean(1)
        order = chances.argsort(dim=-1, descending=True, stable=True)
        return order[:, : self.read].sort(-1).values


def _bounds(keys: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Least and largest numbers of chunks, [heads, chunks, head_dim]; none of chunks of one."""
    if chunk == 1:
        return keys[:, :0], keys[:, :0]
    parts = torch.split(keys, chunk, 1)
    least, most = ([getattr(part, how)(1) for part in parts] for how in ("amin", "amax"))
    return torch.stack(least, 1), torch.stack(most, 1)


class KeyChunks(Store):
    """Holds all entries; a step reads those of the chunks with the highest bounds."""

    reads_part = True

    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        chunk, channels, read = _sizes(keys.shape[1], keys.shape[2], parameters)
        group = int(parameters["query_group"])
        return ChunkedSegment(keys, values, group, *_bounds(keys, chunk), chunk, channels, read)

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        chunk, _, _ = _sizes(entries, head_dim, parameters)
        bounds = -(-entries // chunk) if chunk > 1 else 0
        return 2 * (entries + bounds) * head_dim * itemsize

    def read_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        chunk, channels, read = _sizes(entries, head_dim, parameters)
        bounds = -(-entries // chunk) * channels if read < entries else 0
        return (2 * read * head_dim + bounds) * itemsize


def _sizes(entries: int, head_dim: int, parameters: Parameters) -> tuple[int, int, int]:
    """Entries of a chunk, channels and entries that a step reads, of so many held ones."""
    budget = int(parameters["budget"])
    if budget >= entries:
        return 1, head_dim, entries
    ratio = entries / budget
    chunk = math.ceil(math.sqrt(ratio))
    chunk = chunk if chunk <= ratio else 1
    return chunk, max(1, int(head_dim * chunk / ratio)), max(1, budget // 2)


register(
    name="rocketkv",
    label="RocketKV",
    summary="Holds more than the budget, chosen as in SnapKV; each step reads the best of it.",
    source="Behnam et al. 2025, arXiv:2502.14051",
    scorer=GroupedWindow(),
    budget_rule=HeldForReading(),
    store=KeyChunks(),
)
