"""What a store is: how kept entries are held. No torch is imported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

from ckv_core.methods.parts.base import Parameters, Part
from ckv_core.methods.parts.views import LayerView
from ckv_core.runtime.lazy_torch import Tensor, torch


class Segment(ABC):
    """Entries of several heads of equal count, held in some form; never changed, only replaced."""

    @property
    @abstractmethod
    def heads(self) -> int:
        """KV heads, of any rows."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Entries of each head."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes really held: scales and remainders included."""

    @abstractmethod
    def decoded(self) -> tuple[Tensor, Tensor]:
        """Keys and values [heads, length, dim] in the model's own type."""

    @abstractmethod
    def take(self, heads: Tensor) -> Segment:
        """Only these heads, in this order; [heads] int64."""

    @abstractmethod
    def keep(self, places: Tensor) -> Segment:
        """Only these entries of each head, [heads, kept] int64, and no memory of the others."""

    def attend(self, queries: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention of queries [heads, queries, head_dim]: see `engine.partial.partial`."""
        from ckv_core.methods.partial_attention import partial  # noqa: PLC0415 - it loads torch

        return partial(queries, *self.decoded(), scaling)


@dataclass(frozen=True, slots=True)
class TensorSegment(Segment):
    """Entries held in the tensors among its fields, all [heads, ...].

    Attributes:
        by_entry: fields that are [heads, length, ...]; the others serve all entries of a head.
        keys, values: [heads, length, ...], in its own form.
    """

    by_entry: ClassVar[tuple[str, ...]] = ("keys", "values")

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
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def take(self, heads: Tensor) -> Self:
        return replace(self, **{name: each[heads] for name, each in self._tensors.items()})

    def keep(self, places: Tensor) -> Self:
        held = {name: getattr(self, name) for name in self.by_entry}
        index = {n: places.view(*places.shape, *[1] * (held[n].dim() - 2)) for n in held}
        return replace(self, **{n: torch.take_along_dim(held[n], index[n], 1) for n in held})

    @property
    def _tensors(self) -> dict[str, Tensor]:
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: each for name, each in held.items() if isinstance(each, torch.Tensor)}


class Store(Part):
    """How the kept entries of the prompt are held; what is generated stays in full precision.

    Attributes:
        is_plain: entries are held as they come, so that rows that keep all of them can share
            the prefill's own tensors.
    """

    is_plain: ClassVar[bool] = False

    def weights(self, view: LayerView, parameters: Parameters) -> Tensor | None:
        """What the prompt's queries say of each channel of keys, [kv_heads, head_dim]."""
        return None

    @abstractmethod
    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        """Hold keys and values [heads, length, dim]; the tensors given may be kept as they are.

        Args:
            keys: of heads that keep equally many entries, oldest first.
            values: of the same entries.
            parameters: of the variant.
            weights: [heads, head_dim], where `weights` of the store gives any.
        """

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        """Bytes of so many entries of one head; never fewer for more.

        Args:
            entries: of the prompt.
            head_dim: numbers of a key, and of a value.
            itemsize: bytes of a number in the model's own type.
            parameters: of the variant.
        """
        return 2 * entries * head_dim * itemsize
