"""One layer's entries of several rows of one prompt, each head as long as it needs.

A slot is a KV head of one row. Slots of equal length and store are stacked into one segment, so
that attention over many rows is a few batched products and nothing is padded. Where PyTorch's
variable-length kernel can be used, plain stacks lie in one tensor that it reads as a whole. Rows
that keep everything share the prefill's tensors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from ckv_core.engine.cache.varlen import (
    Kernel,
    Packed,
    Stretches,
    over_stretches,
    pack,
    usable_join,
    usable_kernel,
)
from ckv_core.engine.causal import visible
from ckv_core.methods.attention import Part, join, partial
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.store import PLAIN, Segment, Store
from ckv_core.models.linear import LinearState


@dataclass(frozen=True, slots=True)
class Keep:
    """A row's choice of one layer's prompt entries, and the store that holds them."""

    mask: Tensor | None  # [kv_heads, prompt_len] bool, or None for everything
    store: Store = PLAIN
    parameters: Parameters = field(default_factory=dict)  # of the row's variant, for the store
    weights: Tensor | None = None  # [kv_heads, head_dim] of the store; None where it asks for none

    @property
    def shares(self) -> bool:
        """Whether the prefill's own tensors serve."""
        return self.mask is None and self.store.is_plain

    @property
    def store_key(self) -> tuple[object, ...]:
        read = [parameter.name for parameter in self.store.parameters]
        own = self.parameters["budget"] if self.store.reads_part else None
        return (self.store.name, own, *(self.parameters[name] for name in read))


@dataclass(frozen=True, slots=True)
class Stack:
    """Slots, of any rows, that keep the same number of entries in the same store."""

    segment: Segment  # the entries
    slots: tuple[int, ...]  # per head of the segment, row * kv_heads + KV head


@dataclass(frozen=True, slots=True)
class PromptSlots:
    """Prompt entries of all rows in one layer; positions are those of the rows' keep masks.

    Nothing here ever changes: decodings that start from the same selection share it.
    """

    prompt_len: int  # entries of the whole prompt; of a sliding layer, those that the prefill held
    # Keys and values [kv_heads, 0, dim]: the layer's heads, dimensions, type and device.
    like: tuple[Tensor, Tensor]
    # The prefill's own tensors, [kv_heads, prompt_len, dim]; None where no row has them.
    whole: tuple[Tensor, Tensor] | None
    whole_rows: tuple[int, ...]  # rows that attend to all of them
    stacks: tuple[Stack, ...]  # the other rows' slots
    packed: tuple[Packed, ...]  # entries for the variable-length kernel, a store each
    apart: tuple[Stack, ...]  # the stacks that the kernel does not read
    # [parts] int64, the slots as attention takes them: packed, apart, of whole rows. A slot comes
    # as often as a store holds it in stretches.
    order: Tensor
    place: Tensor  # [slots] int64, where in that order each slot is
    # Where the second stretch of each slot is, and [slots, 1] whether there is none; None where no
    # slot has one.
    second: tuple[Tensor, Tensor] | None
    # Of a linear layer, which has no entries: what it carries, the same for all rows.
    state: LinearState | None = None

    @property
    def kv_heads(self) -> int:
        return self.like[0].shape[0]

    def bytes_of(self, entries: int) -> int:
        """Bytes of so many plain entries of every head."""
        width = sum(each.shape[2] * each.element_size() for each in self.like)
        return self.kv_heads * entries * width

    def row_bytes(self, row: int, *, read: bool = False) -> int:
        """Bytes of the tensors that hold one row's prompt entries; or of those a step reads."""
        if row in self.whole_rows:
            return self.bytes_of(self.prompt_len)
        total = 0
        for stack in self.stacks:
            heads = sum(slot // self.kv_heads == row for slot in stack.slots)
            nbytes = stack.segment.read_bytes if read else stack.segment.nbytes
            total += heads * nbytes // max(1, stack.segment.heads)
        return total

    def rows(self, keep: Sequence[int]) -> "PromptSlots":
        """Only these rows, with new numbers; what a stack keeps whole is not copied."""
        kv_heads = self.kv_heads
        new_row = {row: index for index, row in enumerate(keep)}
        stacks = []
        for stack in self.stacks:
            slots = stack.slots
            kept = [index for index, slot in enumerate(slots) if slot // kv_heads in new_row]
            moved = [new_row[slots[i] // kv_heads] * kv_heads + slots[i] % kv_heads for i in kept]
            if len(kept) == len(slots):
                stacks.append(Stack(stack.segment, tuple(moved)))
            elif kept:
                taken = torch.tensor(kept, device=self.like[0].device)
                stacks.append(Stack(stack.segment.take(taken), tuple(moved)))
        whole = tuple(new_row[row] for row in self.whole_rows if row in new_row)
        return _prompt_slots(self.prompt_len, self.like, self.whole, whole, stacks)

    @property
    def own_bytes(self) -> int:
        """Bytes held beside the prefill's own tensors."""
        return sum(stack.segment.nbytes for stack in self.stacks)


def compact(keys: Tensor, values: Tensor, rows: Sequence[Keep]) -> PromptSlots:
    """Copy what each row keeps of one layer's keys and values, [kv_heads, prompt_len, dim]."""
    kv_heads, prompt_len, _ = keys.shape
    like = (
        keys.new_empty(kv_heads, 0, keys.shape[2]),
        values.new_empty(kv_heads, 0, values.shape[2]),
    )
    whole = tuple(row for row, keep in enumerate(rows) if keep.shares)
    others = [(row, keep) for row, keep in enumerate(rows) if not keep.shares]
    if not others:
        return _prompt_slots(prompt_len, like, (keys, values), whole, ())
    everything = torch.ones(kv_heads, prompt_len, dtype=torch.bool, device=keys.device)
    marked = torch.cat([everything if keep.mask is None else keep.mask for _, keep in others])
    heads, positions = marked.nonzero().unbind(1)
    entries = heads % kv_heads * prompt_len + positions
    slots = [(row * kv_heads + head, keep) for row, keep in others for head in range(kv_heads)]
    alike: dict[tuple[object, ...], list[tuple[int, Keep, Tensor]]] = {}
    pieces = torch.split(entries, marked.sum(1).tolist())
    for (slot, keep), kept in zip(slots, pieces, strict=True):
        alike.setdefault((len(kept), *keep.store_key), []).append((slot, keep, kept))
    stacks = []
    for members in alike.values():
        _, keep, of_one = members[0]
        weights = [
            each.weights[slot % kv_heads] for slot, each, _ in members if each.weights is not None
        ]
        kept = torch.cat([entries for *_, entries in members])
        # Whole rows of one table are copied in one go; an index per head and position is not.
        shape = (len(members), len(of_one))
        segment = keep.store.encode(
            keys.flatten(0, 1).index_select(0, kept).view(*shape, keys.shape[2]),
            values.flatten(0, 1).index_select(0, kept).view(*shape, values.shape[2]),
            keep.parameters,
            torch.stack(weights) if weights else None,
        )
        stacks.append(Stack(segment, tuple(slot for slot, *_ in members)))
    return _prompt_slots(prompt_len, like, (keys, values), whole, stacks)


def held_slots(
    prompt_len: int, like: tuple[Tensor, Tensor], held: Sequence[tuple[Segment, Sequence[int]]]
) -> PromptSlots:
    """One row of segments, each with its KV heads; `like` as of PromptSlots."""
    stacks = [Stack(segment, tuple(heads)) for segment, heads in held]
    return _prompt_slots(prompt_len, like, None, (), stacks)


def _prompt_slots(
    prompt_len: int,
    like: tuple[Tensor, Tensor],
    whole: tuple[Tensor, Tensor] | None,
    whole_rows: tuple[int, ...],
    stacks: Sequence[Stack],
) -> PromptSlots:
    """Lay stacks of a kind out together for the variable-length kernel where it can be used."""
    if not whole_rows:
        whole = None  # or they would live as long as what was copied from them
    kv_heads, device = like[0].shape[0], like[0].device
    kernel = usable_kernel(device, like[0].dtype, like[0].shape[2])
    kinds: dict[object, list[Stack]] = {}
    for stack in stacks:
        fits = kernel is not None and stack.segment.length and like[0].shape == like[1].shape
        kinds.setdefault(stack.segment.kind if fits else None, []).append(stack)  # None: apart
    apart, packed, laid = kinds.pop(None, []), [], []
    for alike in kinds.values():
        slots = [stack.slots for stack in alike]
        made, views = pack([stack.segment for stack in alike], slots, cast(Kernel, kernel))
        packed.append(made)
        laid += [replace(stack, segment=view) for stack, view in zip(alike, views, strict=True)]
    held: list[Packed | Stack] = [*packed, *apart]
    order = [slot for each in held for slot in each.slots]
    order += [row * kv_heads + head for row in whole_rows for head in range(kv_heads)]
    places: list[list[int]] = [[] for _ in set(order)]
    for at, slot in enumerate(order):
        places[slot].append(at)

    def on_device(numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    second = None
    if any(len(each) > 1 for each in places):
        last = on_device([each[-1] for each in places])
        second = last, on_device([len(each) for each in places])[:, None] < 2
    return PromptSlots(
        prompt_len=prompt_len,
        like=like,
        whole=whole,
        whole_rows=whole_rows,
        stacks=(*laid, *apart),
        packed=tuple(packed),
        apart=tuple(apart),
        order=on_device(order),
        place=on_device([each[0] for each in places]),
        second=second,
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """Where the next entry of some rows' tails goes, on the device, for steps of a fixed shape."""

    at: Tensor  # [1] int64, where the next entry goes
    rooms: Stretches  # of each slot's tail; that entry counts as used

    def advance(self) -> None:
        """One entry further."""
        self.at.add_(1)
        cast(Tensor, self.rooms.used).add_(1)


class StateCache:
    """The state of some rows in a linear layer, in the place of slots.

    Attributes:
        state: after the last committed token.
        next: after the last pass, which `commit` keeps.
    """

    def __init__(self, state: LinearState, rows: int) -> None:
        self.state = self.next = state.repeated(rows)

    @property
    def grown_bytes(self) -> int:
        return self.state.nbytes

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        self.state = self.next = self.state.rows(list(rows))

    def commit(self, _tokens: int) -> None:
        self.state = self.next


class SlotCache:
    """Slots of rows that evict nothing while they generate, all of which grow alike.

    What selection kept of the prompt stays as it is; what is read and generated afterwards lies in
    a dense tail, for it has the same length in every slot. Attention over both is computed apart
    and joined exactly through the log-sum-exp of both parts.

    Attributes:
        prompt: what the rows keep of the prompt.
        length: committed entries of every row's tail.
        seen: entries of the tail in the last pass, its own included.
        pace: while it is set, single tokens are appended where it says, whatever was committed.
    """

    def __init__(self, prompt: PromptSlots, rows: int, capacity: int, window: int | None) -> None:
        """`window` is the layer's sliding window; `capacity` bounds the tail."""
        self.prompt = prompt
        self.length = self.seen = 0
        self._window = window
        self.pace: Pace | None = None
        self._keys, self._values = (
            like.new_zeros(rows, like.shape[0], capacity, like.shape[2]) for like in prompt.like
        )

    @property
    def grown_bytes(self) -> int:
        """Bytes held for what is read and generated."""
        return self._keys.nbytes + self._values.nbytes

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order; the others cost nothing from now on."""
        self.prompt = self.prompt.rows(rows)
        self._keys, self._values = self._keys[list(rows)], self._values[list(rows)]

    def tail(self, row: int) -> tuple[Tensor, Tensor]:
        """Tail keys and values that one row had in the last pass, each [kv_heads, seen, dim]."""
        return self._keys[row, :, : self.seen], self._values[row, :, : self.seen]

    def commit(self, tokens: int) -> None:
        """Keep the newest entries, which the next pass would write over."""
        self.length += tokens

    def own_pace(self) -> Pace:
        """Where these rows are: the same in every layer of a part."""
        rows, kv_heads, capacity, _ = self._keys.shape
        slots, device, used = rows * kv_heads, self._keys.device, self.length + 1
        counts = torch.arange(slots + 1, dtype=torch.int32, device=device)
        return Pace(
            torch.tensor([self.length], device=device),
            Stretches(counts, counts * capacity, capacity, torch.full_like(counts[1:], used)),
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling) -> Tensor:
        """Attention of the new tokens over each row's own entries and themselves.

        Shapes as of `AttentionContext.attend`; what is appended stays until the next pass or
        `commit`.
        """
        rows, query_heads, tokens, head_dim = query.shape
        # [slots, group * tokens, head_dim]: the queries of a KV head attend to the same entries.
        slots = query.reshape(rows * key.shape[1], -1, head_dim)
        if self.pace is not None:
            own = self._append_fixed(self.pace, slots, key, value, scaling)
        else:
            own = self._append(slots, key, value, scaling)
        own = scaling.joined(*own, tokens)
        # In one order, so that slots are picked once and put back once, however many stacks.
        parts = [*self._prompt_parts(slots[self.prompt.order], tokens, scaling)]
        out, total = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
        fused = usable_join(query.device)
        if fused is not None:
            whole = fused(own, (out, total), self.prompt.place, query.dtype, self.prompt.second)
            return whole.view(rows, query_heads, tokens, -1)
        held = out[self.prompt.place], total[self.prompt.place]
        if self.prompt.second is not None:
            place, has_none = self.prompt.second
            others = total[place].masked_fill(has_none, -torch.inf)
            held = join(held, (out[place], others)), torch.logaddexp(held[1], others)
        return join(own, held).view(rows, query_heads, tokens, -1).to(query.dtype)

    def _append(self, slots: Tensor, key: Tensor, value: Tensor, scaling: Scaling) -> Part:
        """Append new tokens and attend to the tail, theirs included."""
        tokens = key.shape[2]
        end = self.seen = self.length + tokens
        self._keys[:, :, self.length : end] = key
        self._values[:, :, self.length : end] = value
        # A single token sees all of its window: a slice will do, and no mask.
        first = max(0, end - self._window) if self._window is not None and tokens == 1 else 0
        mask = None
        if tokens > 1:
            mask = visible(self.length, end, 0, end, self._window, key.device)
            mask = mask.repeat(slots.shape[1] // tokens, 1)
        return partial(
            slots,
            self._keys[:, :, first:end].flatten(0, 1),
            self._values[:, :, first:end].flatten(0, 1),
            scaling,
            mask,
        )

    def _append_fixed(
        self, pace: Pace, slots: Tensor, key: Tensor, value: Tensor, scaling: Scaling
    ) -> Part:
        """Append one token and attend to the tail; nothing here depends on how long it is."""
        self._keys.index_copy_(2, pace.at, key)
        self._values.index_copy_(2, pace.at, value)
        keys, values = self._keys.flatten(0, 1), self._values.flatten(0, 1)
        kernel = usable_kernel(slots.device, slots.dtype, slots.shape[2])
        if kernel is not None and keys.shape == values.shape:
            own = keys.flatten(0, 1), values.flatten(0, 1)
            return over_stretches(kernel, slots, *own, pace.rooms, scaling)
        # What a mask hides is multiplied by 0: room that is not used must hold numbers.
        mask = torch.arange(keys.shape[1], device=slots.device) <= pace.at
        return partial(slots, keys, values, scaling, mask.expand(slots.shape[1], -1))

    def _prompt_parts(self, slots: Tensor, tokens: int, scaling: Scaling) -> Iterator[Part]:
        """Attention over the prompt, of `slots` [slots, group * tokens, head_dim] in order."""
        packed, apart = self.prompt.packed, self.prompt.apart
        whole = len(self.prompt.whole_rows) * self.prompt.kv_heads
        held: list[Packed | Stack] = [*packed, *apart]
        queries = iter(torch.split(slots, [*(len(each.slots) for each in held), whole]))
        for each in packed:
            yield each.attention(next(queries), scaling)
        for stack in apart:
            yield stack.segment.attend(next(queries), scaling)
        if self.prompt.whole is not None:
            yield self._attend_whole(*self.prompt.whole, next(queries), tokens, scaling)

    def _attend_whole(
        self, keys: Tensor, values: Tensor, slots: Tensor, tokens: int, scaling: Scaling
    ) -> Part:
        """Rows that keep everything: one product per KV head for all of them together.

        Of keys and values [kv_heads, prompt_len, dim]; `slots` and the output are
        [rows * kv_heads, group * tokens, dim].
        """
        kv_heads, prompt_len, _ = keys.shape
        queries = slots.view(-1, kv_heads, *slots.shape[1:]).transpose(0, 1)
        mask, first = None, 0
        if self._window is not None:
            start = prompt_len + self.length
            first = max(0, min(start - self._window + 1, prompt_len))  # earlier: not seen
            if tokens > 1:
                mask = visible(start, start + tokens, first, prompt_len, self._window, slots.device)
                mask = mask.repeat(queries.shape[1] * queries.shape[2] // tokens, 1)
        part = self._attend_prompt(
            queries.flatten(1, 2), keys[:, first:], values[:, first:], scaling, mask
        )
        shape = queries.shape[:3]
        out, total = part[0].view(*shape, -1), part[1].view(shape)
        return out.transpose(0, 1).flatten(0, 1), total.transpose(0, 1).flatten(0, 1)

    def _attend_prompt(
        self, queries: Tensor, keys: Tensor, values: Tensor, scaling: Scaling, mask: Tensor | None
    ) -> Part:
        """Attention over the whole prompt; arguments as of `partial`."""
        return partial(queries, keys, values, scaling, mask)
