"""What a store is: how kept entries are held, as they come or the newest ones only. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, cast

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.parameters import integer
from ckv_core.methods.parts.base import Parameters, Part
from ckv_core.methods.parts.views import LayerView


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
    def nbytes(self) -> int:
        """Bytes really held: scales and remainders included."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

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
        from ckv_core.methods.attention import partial  # noqa: PLC0415 - it loads torch

        return partial(queries, *self.decoded(), scaling)

    # --- what a file holds of it; a segment is a dataclass -----------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All that it holds, by field; of a segment among its fields by `field.name`."""
        held: dict[str, Tensor] = {}
        for name in (each.name for each in fields(cast("Any", self))):
            value = getattr(self, name)
            if isinstance(value, Segment):
                held |= {f"{name}.{key}": tensor for key, tensor in value.tensors().items()}
            elif isinstance(value, torch.Tensor):
                held[name] = value
        return held

    def holding(self, tensors: Mapping[str, Tensor]) -> Self:
        """The same with other tensors of the same names, shapes and types."""
        own = {name: tensor for name, tensor in tensors.items() if "." not in name}
        inner: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            field, dot, key = name.partition(".")
            if dot:
                inner.setdefault(field, {})[key] = tensor
        nested = {field: getattr(self, field).holding(each) for field, each in inner.items()}
        return cast("Self", replace(cast("Any", self), **own, **nested))

    def is_sound(self) -> bool:
        """Whether what its tensors index by is in range; they may be a stranger's."""
        return True


@dataclass(frozen=True, slots=True)
class TensorSegment(Segment):
    """Entries held in the tensors among its fields, all [heads, ...]."""

    # Fields that are [heads, length, ...]; the others serve all entries of a head.
    by_entry: ClassVar[tuple[str, ...]] = ("keys", "values")

    # keys, values: [heads, length, ...], in its own form.
    keys: Tensor
    values: Tensor

    @property
    def heads(self) -> int:
        return self.keys.shape[0]

    @property
    def length(self) -> int:
        return self.keys.shape[1]

    def take(self, heads: Tensor) -> Self:
        return replace(self, **{name: each[heads] for name, each in self.tensors().items()})

    def keep(self, places: Tensor) -> Self:
        held = {name: getattr(self, name) for name in self.by_entry}
        index = {n: places.view(*places.shape, *[1] * (held[n].dim() - 2)) for n in held}
        return replace(self, **{n: torch.take_along_dim(held[n], index[n], 1) for n in held})


class Store(Part):
    """How the kept entries of the prompt are held; what is generated stays in full precision."""

    # Entries are held as they come, so that rows that keep all of them can share the prefill's own
    # tensors.
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
        """Bytes of so many entries of one head; never fewer for more."""
        return 2 * entries * head_dim * itemsize


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
        return PlainSegment(keys, values)


PLAIN = PlainStore()


RESIDUAL = integer("residual", 32, (0, 4096)).means(
    "With store=int4 and store=think: kept entries of each KV head, the newest, that stay as "
    "they are."
)


def older(length: int, parameters: Parameters) -> int:
    """Entries of a head of so many that do not stay as they are."""
    return max(0, length - int(parameters[RESIDUAL.name]))


@dataclass(frozen=True, slots=True)
class ResidualSegment(Segment):
    """Older entries in some form, and after them plain ones."""

    older: Segment
    newest: PlainSegment

    @property
    def heads(self) -> int:
        return self.newest.heads

    @property
    def length(self) -> int:
        return self.older.length + self.newest.length

    def decoded(self) -> tuple[Tensor, Tensor]:
        pairs = zip(self.older.decoded(), self.newest.decoded(), strict=True)
        keys, values = (torch.cat(pair, 1) for pair in pairs)
        return keys, values

    def is_sound(self) -> bool:
        return self.older.is_sound()

    def take(self, heads: Tensor) -> Segment:
        return ResidualSegment(self.older.take(heads), self.newest.take(heads))

    def keep(self, places: Tensor) -> Segment:
        """Of older entries as many stay so in every head; the others of a head become plain."""
        count = int((places < self.older.length).sum(1).min())
        rest = PlainSegment(*self.decoded()).keep(places[:, count:])
        return ResidualSegment(self.older.keep(places[:, :count]), rest) if count else rest
