"""Kept keys without the channels that the last queries weigh least (Xu et al. 2024, ThinK).

A channel's score is the size of what it adds to the logits: the norm of the queries' channel times
that of all kept keys (arXiv:2407.21018), with the mean over the query heads that share a KV head.
Keys shrink, values do not; the newest entries keep all channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckv_core.methods.base import STORES
from ckv_core.methods.parameters import number
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.store import (
    RESIDUAL,
    PlainSegment,
    ResidualSegment,
    Segment,
    Store,
    TensorSegment,
    older,
)
from ckv_core.methods.parts.views import LayerView, PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch

PRUNED = number(
    "pruned",
    0.4,
    (0.0, 0.95),
    "With store=think: share of the key channels of each KV head that are dropped.",
)
QUERIES = 32  # last ones of the prompt
_INDEX_BYTES = 2


@dataclass(frozen=True, slots=True)
class _ThinSegment(TensorSegment):
    """Keys of some channels; of the others they are 0.

    Attributes:
        keys: [heads, length, kept channels].
        values: [heads, length, value_dim].
    """

    channels: Tensor  # [heads, kept channels] int16, ascending
    head_dim: int  # all channels

    def decoded(self) -> tuple[Tensor, Tensor]:
        whole = self.keys.new_zeros(*self.keys.shape[:2], self.head_dim)
        index = self.channels.long()[:, None].expand(self.keys.shape)
        return whole.scatter(-1, index, self.keys), self.values

    def is_sound(self) -> bool:
        steps = self.channels.diff(dim=1)
        inside = (self.channels >= 0) & (self.channels < self.head_dim)
        return bool(inside.all() and (steps > 0).all())


class Think(Store):
    """Fewer channels of keys."""

    name = "think"
    parameters = (PRUNED, RESIDUAL)

    def weights(self, view: LayerView, parameters: Parameters) -> Tensor:
        """Mean square of the last queries by channel, [kv_heads, head_dim]."""
        squares = view.window_queries(QUERIES).float().square().mean(1)
        return squares.view(view.kv_heads, -1, squares.shape[-1]).mean(1)

    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        split = older(keys.shape[1], parameters)
        newest = PlainSegment(keys[:, split:].clone(), values[:, split:].clone())
        if not split:
            return newest
        early, width = keys[:, :split], keys.shape[-1]
        scores = keys.float().square().mean(1)  # the newest count, though they stay whole
        scores = scores if weights is None else scores * weights.to(scores.device)
        best = scores.argsort(dim=-1, descending=True, stable=True)
        channels = best[:, : channels_kept(width, parameters)].sort(-1).values
        index = channels[:, None].expand(-1, split, -1)
        kept = early.gather(-1, index)
        thin = _ThinSegment(kept, values[:, :split].clone(), channels.to(torch.int16), width)
        return ResidualSegment(thin, newest)

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        return 12 * shape.kv_heads * shape.prompt_len * shape.head_dim

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        thin, kept = older(entries, parameters), channels_kept(head_dim, parameters)
        numbers = 2 * entries * head_dim - thin * (head_dim - kept)
        return numbers * itemsize + (kept * _INDEX_BYTES if thin else 0)


STORES["think"] = Think()


def channels_kept(head_dim: int, parameters: Parameters) -> int:
    """Channels of a key that stay."""
    return head_dim - int(head_dim * float(parameters[PRUNED.name]) + 1e-9)
