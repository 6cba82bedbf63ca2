"""Kept entries in eight bits: keys with a scale per channel, values with one per entry (KIVI).

Channels of keys differ in size by far and those of values do not (Liu et al. 2024,
arXiv:2402.02750). What is read and generated after the prompt stays in the model's own type.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckv_core.methods.base import STORES
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.store import Segment, Store, TensorSegment
from ckv_core.runtime.lazy_torch import Tensor, torch

_MOST = 127
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Int8Segment(TensorSegment):
    """An entry is its eight bits times its scale.

    Attributes:
        keys, values: [heads, length, dim] int8.
    """

    by_entry = ("keys", "values", "value_scales")

    key_scales: Tensor  # [heads, 1, head_dim] float32
    value_scales: Tensor  # [heads, length, 1] float32
    dtype: torch.dtype  # of the model

    def decoded(self) -> tuple[Tensor, Tensor]:
        keys, values = self.keys * self.key_scales, self.values * self.value_scales
        return keys.to(self.dtype), values.to(self.dtype)


class Int8(Store):
    """Eight bits an entry and dimension, and the scales."""

    name = "int8"

    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        (key_codes, key_scales), (codes, scales) = _rounded(keys, 1), _rounded(values, 2)
        return _Int8Segment(key_codes, codes, key_scales, scales, keys.dtype)

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        return entries * (2 * head_dim + _SCALE_BYTES) + head_dim * _SCALE_BYTES


def _rounded(states: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """Eight bits and the scales that are shared along one dimension."""
    sizes = states.float().abs()
    largest = sizes.amax(over, keepdim=True) if sizes.numel() else sizes.sum(over, keepdim=True)
    scales = largest.clamp_min(torch.finfo(torch.float32).tiny) / _MOST
    return (states / scales).round().clamp(-_MOST, _MOST).to(torch.int8), scales


STORES["int8"] = Int8()
