"""The store that changes nothing: entries in the model's own type."""

from __future__ import annotations

from dataclasses import dataclass

from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.store import Store, TensorSegment
from ckv_core.runtime.lazy_torch import Tensor


@dataclass(frozen=True, slots=True)
class PlainSegment(TensorSegment):
    """Keys [heads, length, head_dim] and values [heads, length, value_dim] as they are."""

    def decoded(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


class PlainStore(Store):
    """Nothing is encoded."""

    name = "plain"
    is_plain = True

    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> PlainSegment:
        """Hold the tensors themselves."""
        return PlainSegment(keys, values)


PLAIN = PlainStore()
