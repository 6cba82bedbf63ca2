"""How kept entries are held: as they come, in eight or four bits, or with fewer channels of keys.

KIVI has the bits, ThinK the channels. What is read and generated after the prompt stays in the
model's own type. No torch is imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, cast

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.parameters import integer, number
from ckv_core.methods.parts.base import Parameters, Part, PerEntry
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.views import LayerView


@dataclass(frozen=True, slots=True)
class Codes:
    """Entries of one head in eight or four bits, for kernels that read them as they are held.

    Attributes:
        bits: 8: an entry is code * step; 4: least + step * code, two channels in a byte.
        keys, values: [1, entries, bytes].
        key_scales: [1, rows, head_dim] float32 steps; of four bits [1, rows, head_dim, 2] float16,
            least and step, a row for so many entries of a head.
        value_scales: [1, entries, 1] float32 steps; of four bits [1, entries, groups, 2] float16.
        begins: [rows] int32, where the entries of each row of key_scales begin.
    """

    bits: int
    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor
    begins: Tensor


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

    @property
    def read_bytes(self) -> int:
        """Bytes of them that a step of one token reads."""
        return self.nbytes

    @abstractmethod
    def decoded(self) -> tuple[Tensor, Tensor]:
        """Keys and values [heads, length, dim] in the model's own type."""

    @abstractmethod
    def take(self, heads: Tensor) -> Segment:
        """Only these heads, in this order; [heads] int64."""

    def keep(self, places: Tensor) -> Segment:
        """Only these entries of each head, [heads, kept] int64, and no memory of the others.

        Where it has several stretches, each of them is cut instead.
        """
        raise NotImplementedError

    # --- many heads of unequal count at once -------------------------------------------------

    @property
    def kind(self) -> tuple[object, ...] | None:
        """Segments of one kind can be laid out together by `flat`; None for none."""
        return None

    @property
    def stretches(self) -> tuple[Segment, ...]:
        """Its parts in the order of entries; `flat` has all heads of one, then of the next."""
        return (self,)

    @classmethod
    def flat(cls, segments: Sequence[Self]) -> tuple[Self, list[Self]]:
        """All entries of segments of one kind as if of one head, and the segments as its views.

        Only a class whose `kind` can be other than None has it.
        """
        raise NotImplementedError

    def codes(self) -> Codes | None:
        """The codes of a segment that `flat` made, for a kernel; None where it must be decoded."""
        return None

    def attend(self, queries: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
        """Attention of queries [heads, queries, head_dim]: see `methods.attention.partial`."""
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
        """Return a segment with other tensors of the same names, shapes and types."""
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

    # Fields that are [heads, length, ...]; and one that is [heads, rows, ...], a row for so many
    # entries of a head, or 0 for all of them.
    by_entry: ClassVar[tuple[str, ...]] = ("keys", "values")
    by_row: ClassVar[str | None] = None
    row_entries: ClassVar[int] = 0

    # keys, values: [heads, length, ...], in its own form.
    keys: Tensor
    values: Tensor
    # [rows] int32, where the entries of each row begin; None unless heads were made one.
    begins: Tensor | None = field(default=None, kw_only=True)

    @property
    def heads(self) -> int:
        return self.keys.shape[0]

    @property
    def length(self) -> int:
        return self.keys.shape[1]

    @property
    def kind(self) -> tuple[object, ...] | None:
        held = self.tensors()
        if not held.keys() <= {*self.by_entry, self.by_row}:
            return None
        return (type(self), *((name, tensor.shape[2:]) for name, tensor in held.items()))

    @classmethod
    def flat(cls, segments: Sequence[Self]) -> tuple[Self, list[Self]]:
        whole: dict[str, Tensor] = {}
        views: list[dict[str, Tensor]] = [{} for _ in segments]
        for name in segments[0].tensors():
            own = [getattr(each, name) for each in segments]
            whole[name] = torch.cat([each.flatten(0, 1) for each in own])[None]
            parts = torch.split(whole[name][0], [each.shape[:2].numel() for each in own])
            for view, each, part in zip(views, own, parts, strict=True):
                view[name] = part.view(each.shape)
        parted = [replace(each, **view) for each, view in zip(segments, views, strict=True)]
        if cls.by_row is None:
            return replace(segments[0], **whole), parted
        begins: list[int] = []
        start = 0
        for length in (each.length for each in segments for _ in range(each.heads)):
            begins += range(start, start + length, cls.row_entries or length)
            start += length
        at = torch.tensor(begins, dtype=torch.int32, device=whole["keys"].device)
        return replace(segments[0], **whole, begins=at), parted

    def of_entries(self) -> Tensor:
        """The row of each entry, [heads, length, ...]; [heads, 1, ...] where all share one."""
        rows = cast("Tensor", getattr(self, cast("str", self.by_row)))
        if self.begins is not None:
            places = torch.arange(self.length, dtype=torch.int32, device=rows.device)
            at = torch.bucketize(places, self.begins[1:], right=True)
            return rows[0].index_select(0, at)[None]
        if not self.row_entries:
            return rows
        return rows.repeat_interleave(self.row_entries, 1)[:, : self.length]

    def take(self, heads: Tensor) -> Self:
        return replace(self, **{name: each[heads] for name, each in self.tensors().items()})

    def keep(self, places: Tensor) -> Self:
        held = {name: getattr(self, name) for name in self.by_entry}
        index = {n: places.view(*places.shape, *[1] * (held[n].dim() - 2)) for n in held}
        return replace(self, **{n: torch.take_along_dim(held[n], index[n], 1) for n in held})


class Store(Part):
    """A store says how the prompt's kept entries are held; generated ones stay as they are."""

    # Entries are held as they come, so that rows that keep all of them can share the prefill's own
    # tensors.
    is_plain: ClassVar[bool] = False
    reads_part: ClassVar[bool] = False  # whether a step reads less than is held
    # Whether what it holds of an entry is that token's, so that one may leave and others stay.
    of_tokens: ClassVar[bool] = True

    def of_layer(self, place: int, parameters: Parameters) -> Store:
        """The store of the evictable layer at an index."""
        return self

    def weights(self, view: LayerView, parameters: Parameters) -> Tensor | None:
        """Return what it must know of an evictable layer's queries, [kv_heads, ...]."""
        return None

    @abstractmethod
    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        """Hold keys and values [heads, length, dim]; the tensors given may be kept as they are.

        Args:
            keys: of heads that keep equally many entries, oldest first.
            values: of the same entries.
            parameters: of the variant; `budget` in tokens, `query_group`, the query heads that
                share a KV head, and `prompt_len`, the entries of a head before any left.
            weights: [heads, ...], where `weights` of the store gives any.
        """

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        """Bytes of so many entries of one head; never fewer for more."""
        return 2 * entries * head_dim * itemsize

    def read_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        """Bytes of them that a step of one token reads."""
        return self.head_bytes(entries, head_dim, itemsize, parameters)


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
    "With store=int4 and store=think: how many of the newest kept entries of each KV head stay "
    "as they are."
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

    @property
    def kind(self) -> tuple[object, ...] | None:
        older = self.older.kind
        return older and (type(self), older, self.newest.kind)

    @property
    def stretches(self) -> tuple[Segment, ...]:
        return (self.older, self.newest)

    @classmethod
    def flat(cls, segments: Sequence[Self]) -> tuple[Self, list[Self]]:
        older, coded = type(segments[0].older).flat([each.older for each in segments])
        newest, plain = PlainSegment.flat([each.newest for each in segments])
        return cls(older, newest), list(map(cls, coded, plain))

    def decoded(self) -> tuple[Tensor, Tensor]:
        pairs = zip(self.older.decoded(), self.newest.decoded(), strict=True)
        keys, values = (torch.cat(pair, 1) for pair in pairs)
        return keys, values

    def is_sound(self) -> bool:
        return self.older.is_sound()

    def take(self, heads: Tensor) -> Segment:
        return ResidualSegment(self.older.take(heads), self.newest.take(heads))


_INT8_MOST = 127
_INT8_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Int8Segment(TensorSegment):
    """An entry is its eight bits times its scale.

    Attributes:
        keys, values: [heads, length, dim] int8.
    """

    by_entry = ("keys", "values", "value_scales")
    by_row = "key_scales"

    key_scales: Tensor  # [heads, 1, head_dim] float32
    value_scales: Tensor  # [heads, length, 1] float32
    dtype: torch.dtype  # of the model

    def decoded(self) -> tuple[Tensor, Tensor]:
        keys, values = self.keys * self.of_entries(), self.values * self.value_scales
        return keys.to(self.dtype), values.to(self.dtype)

    def codes(self) -> Codes | None:
        if self.begins is None:
            return None
        scales = self.key_scales, self.value_scales
        return Codes(8, self.keys, self.values, *scales, self.begins)


class Int8(Store):
    """Eight bits an entry and dimension: keys with a scale per channel, values with one per entry.

    Channels of keys differ in size by far and those of values do not (Liu et al. 2024,
    arXiv:2402.02750).
    """

    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        (key_codes, key_scales), (codes, scales) = _rounded(keys, 1), _rounded(values, 2)
        return _Int8Segment(key_codes, codes, key_scales, scales, keys.dtype)

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        return entries * (2 * head_dim + _INT8_SCALE_BYTES) + head_dim * _INT8_SCALE_BYTES


def _rounded(states: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """Eight bits and the scales that are shared along one dimension."""
    sizes = states.float().abs()
    largest = sizes.amax(over, keepdim=True) if sizes.numel() else sizes.sum(over, keepdim=True)
    scales = largest.clamp_min(torch.finfo(torch.float32).tiny) / _INT8_MOST
    return (states / scales).round().clamp(-_INT8_MOST, _INT8_MOST).to(torch.int8), scales


GROUP = 32
_MOST = 15
_SCALE_BYTES = 4  # of a smallest value and a step, float16 both
_LARGEST = 65504.0  # of float16


@dataclass(frozen=True, slots=True)
class _Int4Segment(TensorSegment):
    """A number is the smallest of its group and so many steps.

    Attributes:
        keys, values: [heads, length, bytes] uint8, two numbers in each.
        key_group: [heads, length] int16, the group of each entry; in order where None.
    """

    by_entry = ("keys", "values", "key_group", "value_scales")
    by_row = "key_scales"
    row_entries = GROUP

    key_scales: Tensor  # [heads, groups, head_dim, 2] float16: smallest, step
    value_scales: Tensor  # [heads, length, groups, 2] float16
    like: tuple[Tensor, Tensor]  # keys and values [0, 0, dim] in the model's type
    key_group: Tensor | None = None

    def decoded(self) -> tuple[Tensor, Tensor]:
        key_like, value_like = self.like
        # Which scales are each entry's, [heads, length, head_dim, 2].
        low, step = self.of_entries().float().unbind(-1)
        keys = low + step * _unpacked(self.keys, key_like.shape[-1])
        width = value_like.shape[-1]
        least, steps = self.value_scales.float().repeat_interleave(_group_of(width), 2).unbind(-1)
        values = least + steps * _unpacked(self.values, width)
        return keys.to(key_like.dtype), values.to(value_like.dtype)

    def codes(self) -> Codes | None:
        width = self.like[0].shape[-1]
        of_groups = self.key_group is None and width % GROUP == 0
        if self.begins is None or not of_groups or self.like[1].shape[-1] != width:
            return None
        scales = self.key_scales, self.value_scales
        return Codes(4, self.keys, self.values, *scales, self.begins)

    def keep(self, places: Tensor) -> Self:
        grouped = replace(self, key_group=self._groups())
        return super(_Int4Segment, grouped).keep(places)

    def of_entries(self) -> Tensor:
        if self.key_group is None:
            return super(_Int4Segment, self).of_entries()
        return torch.take_along_dim(self.key_scales, self.key_group.long()[..., None, None], 1)

    def _groups(self) -> Tensor:
        """The group of each entry, [heads, length]; in order until some are evicted."""
        if self.key_group is not None:
            return self.key_group
        groups = torch.arange(self.length, device=self.keys.device) // GROUP
        return groups.to(torch.int16).expand(self.heads, -1)


class Int4(Store):
    """Half a byte a number, and the scales, in KIVI's layout (Liu et al. 2024, arXiv:2402.02750).

    A smallest value and a step for each group of 32: of keys along the entries, a channel by
    itself; of values along the channels, an entry by itself. The newest entries stay as they are.
    KIVI keeps the entries that do not fill a group in full precision; here the last group may be
    shorter, so that bytes follow the budget.
    """

    parameters = (RESIDUAL,)
    work = PerEntry(keys=8)

    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        split = older(keys.shape[1], parameters)
        newest = PlainSegment(keys[:, split:].clone(), values[:, split:].clone())
        if not split:
            return newest
        key_codes, key_scales = _coded_keys(keys[:, :split].float())
        value_codes, value_scales = _coded_values(values[:, :split].float())
        coded = _Int4Segment(
            keys=_packed(key_codes),
            values=_packed(value_codes),
            key_scales=key_scales,
            value_scales=value_scales,
            like=(keys[:0, :0].clone(), values[:0, :0].clone()),
        )
        return ResidualSegment(coded, newest)

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        coded, packed = older(entries, parameters), -(-head_dim // 2)
        scales = -(-coded // GROUP) * head_dim + coded * (head_dim // _group_of(head_dim))
        plain = 2 * (entries - coded) * head_dim * itemsize
        return 2 * coded * packed + scales * _SCALE_BYTES + plain


def _group_of(width: int) -> int:
    """Channels that share a scale."""
    return GROUP if width % GROUP == 0 else width


def _coded_keys(states: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers 0 to 15 and [heads, groups, head_dim, 2] of [heads, entries, head_dim] float32."""
    groups = torch.split(states, GROUP, dim=1)
    low = torch.stack([part.amin(1) for part in groups], 1)
    high = torch.stack([part.amax(1) for part in groups], 1)
    scales = _scales(low, high)
    lows, steps = scales.float().repeat_interleave(GROUP, 1)[:, : states.shape[1]].unbind(-1)
    return _codes(states, lows, steps), scales


def _coded_values(states: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers 0 to 15 by entry, and their scales [heads, entries, groups, 2]."""
    group = _group_of(states.shape[-1])
    grouped = states.reshape(*states.shape[:-1], -1, group)
    scales = _scales(grouped.amin(-1), grouped.amax(-1))
    lows, steps = scales.float().repeat_interleave(group, 2).unbind(-1)
    return _codes(states, lows, steps), scales


def _scales(low: Tensor, high: Tensor) -> Tensor:
    """Smallest values and steps as they are held."""
    pair = torch.stack([low, (high - low) / _MOST], -1)
    return pair.clamp(-_LARGEST, _LARGEST).half()


def _codes(states: Tensor, low: Tensor, step: Tensor) -> Tensor:
    """By the scales as they are held, so that decoding undoes no other rounding."""
    steps = torch.where(step > 0, (states - low) / step.clamp_min(1e-8), 0)
    return steps.round().clamp(0, _MOST).to(torch.uint8)


def _packed(codes: Tensor) -> Tensor:
    """Two numbers a byte, along the channels; an odd last one is alone."""
    even = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return even[..., ::2] | even[..., 1::2] << 4


def _unpacked(packed: Tensor, width: int) -> Tensor:
    """Undo `_packed`, as float32."""
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)[..., :width].float()


PRUNED = number("pruned", 0.4, (0.0, 0.95)).means(
    "With store=think: share of the key channels of each KV head that are dropped."
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

    by_row = "channels"

    channels: Tensor  # [heads, 1, kept channels] int16, ascending
    head_dim: int  # all channels

    def decoded(self) -> tuple[Tensor, Tensor]:
        whole = self.keys.new_zeros(*self.keys.shape[:2], self.head_dim)
        index = self.of_entries().long().expand(self.keys.shape)
        return whole.scatter(-1, index, self.keys), self.values

    def is_sound(self) -> bool:
        steps = self.channels.diff(dim=-1)
        inside = (self.channels >= 0) & (self.channels < self.head_dim)
        return bool(inside.all() and (steps > 0).all())


class Think(Store):
    """Keys without the channels that the last queries weigh least (Xu et al. 2024, ThinK).

    A channel's score is the size of what it adds to the logits: the norm of the queries' channel
    times that of all kept keys (arXiv:2407.21018), with the mean over the query heads that share a
    KV head. Keys shrink, values do not; the newest entries keep all channels.
    """

    parameters = (PRUNED, RESIDUAL)
    work = PerEntry(keys=3)

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
        channels = best[:, None, : channels_kept(width, parameters)].sort(-1).values
        index = channels.expand(-1, split, -1)
        kept = early.gather(-1, index)
        thin = _ThinSegment(kept, values[:, :split].clone(), channels.to(torch.int16), width)
        return ResidualSegment(thin, newest)

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        thin, kept = older(entries, parameters), channels_kept(head_dim, parameters)
        numbers = 2 * entries * head_dim - thin * (head_dim - kept)
        return numbers * itemsize + (kept * _INDEX_BYTES if thin else 0)


def channels_kept(head_dim: int, parameters: Parameters) -> int:
    """Channels of a key that stay."""
    return head_dim - int(head_dim * float(parameters[PRUNED.name]) + 1e-9)


# What a SPEC may ask for, by its word after `store=`.
STORES: dict[str, Store] = {"int8": Int8(), "int4": Int4(), "think": Think()}
