"""The store that changes nothing: entries in the model's own type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.store import Segment, Store
from ckv_core.runtime.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PlainSegment(Segment):
    """Keys [heads, length, head_dim] and values [heads, length, value_dim] as they are."""

    keys: Tensor
    values: Tensor

    @property
    def heads(self) -> int:
        return self.keys.shape[0]

    @property
    def length(self) -> int:
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def decoded(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values

    def take(self, heads: Tensor) -> PlainSegment:
        return PlainSegment(self.keys[heads], self.values[heads])

    def keep(self, places: Tensor) -> PlainSegment:
        index = places[..., None]
        return PlainSegment(
            torch.take_along_dim(self.keys, index, 1), torch.take_along_dim(self.values, index, 1)
        )


class PlainStore(Store):
    """Nothing is encoded."""

    name = "plain"
    is_plain = True

    def encode(
        self,
        keys: Tensor,
        values: Tensor,
        parameters: Parameters,
        weights: Tensor | None = None,
    ) -> PlainSegment:
        """Hold the tensors themselves."""
        return PlainSegment(keys, values)


PLAIN = PlainStore()
