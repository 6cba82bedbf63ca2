"""Kept entries in eight bits: keys with a scale per channel, values with one per entry (KIVI).

Channels of keys differ in size by far and those of values do not (Liu et al. 2024,
arXiv:2402.02750). What is read and generated after the prompt stays in the model's own type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckv_core.methods.base import STORES
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.store import Segment, Store
from ckv_core.runtime.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor

_MOST = 127
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Int8Segment(Segment):
    """An entry is its eight bits times its scale.

    Attributes:
        keys: [heads, length, head_dim] int8.
        key_scales: [heads, 1, head_dim] float32.
        values: [heads, length, value_dim] int8.
        value_scales: [heads, length, 1] float32.
        dtype: of the model.
    """

    keys: Tensor
    key_scales: Tensor
    values: Tensor
    value_scales: Tensor
    dtype: torch.dtype

    @property
    def heads(self) -> int:
        return self.keys.shape[0]

    @property
    def length(self) -> int:
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        held = (self.keys, self.key_scales, self.values, self.value_scales)
        return sum(tensor.nbytes for tensor in held)

    def decoded(self) -> tuple[Tensor, Tensor]:
        keys, values = self.keys * self.key_scales, self.values * self.value_scales
        return keys.to(self.dtype), values.to(self.dtype)

    def take(self, heads: Tensor) -> Segment:
        return replace(
            self,
            keys=self.keys[heads],
            key_scales=self.key_scales[heads],
            values=self.values[heads],
            value_scales=self.value_scales[heads],
        )

    def keep(self, places: Tensor) -> Segment:
        def kept(states: Tensor) -> Tensor:
            return torch.take_along_dim(states, places[..., None], 1)

        values, scales = kept(self.values), kept(self.value_scales)
        return replace(self, keys=kept(self.keys), values=values, value_scales=scales)


class Int8(Store):
    """Eight bits an entry and dimension, and the scales."""

    name = "int8"

    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        return _Int8Segment(*_rounded(keys, 1), *_rounded(values, 2), dtype=keys.dtype)

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        return entries * (2 * head_dim + _SCALE_BYTES) + head_dim * _SCALE_BYTES


def _rounded(states: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """Eight bits and the scales that are shared along one dimension."""
    sizes = states.float().abs()
    largest = sizes.amax(over, keepdim=True) if sizes.numel() else sizes.sum(over, keepdim=True)
    scales = largest.clamp_min(torch.finfo(torch.float32).tiny) / _MOST
    return (states / scales).round().clamp(-_MOST, _MOST).to(torch.int8), scales


STORES["int8"] = Int8()
