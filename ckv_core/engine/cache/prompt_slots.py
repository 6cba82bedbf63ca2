"""PromptSlots: what several rows keep of one prompt in one layer, each head as long as it needs.

A slot is a KV head of one row. Slots of equal length and store are stacked into one segment, so
that attention over many rows is a few batched products and nothing is padded. Where PyTorch's
variable-length kernel can be used, plain stacks lie in one tensor that it reads as a whole. Rows
that keep everything share the prefill's tensors. Nothing here ever changes: decodings that start
from the same selection share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from ckv_core.engine.cache.varlen import Packed, pack, usable_kernel
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.store import PLAIN, PlainSegment, Segment, Store


@dataclass(frozen=True, slots=True)
class Keep:
    """What one row keeps of one layer's prompt, and how it holds it."""

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
        return (self.store.name, *(self.parameters[name] for name in read))


@dataclass(frozen=True, slots=True)
class Stack:
    """Slots, of any rows, that keep the same number of entries in the same store."""

    segment: Segment  # the entries
    slots: tuple[int, ...]  # per head of the segment, row * kv_heads + KV head
    # [heads] int64, the same on the device: reading it back would wait for the device.
    index: Tensor


@dataclass(frozen=True, slots=True)
class PromptSlots:
    """Prompt entries of all rows in one layer; positions are those of the rows' keep masks."""

    prompt_len: int  # entries of the whole prompt; of a sliding layer, those that the prefill held
    # Keys and values [kv_heads, 0, dim]: the layer's heads, dimensions, type and device.
    like: tuple[Tensor, Tensor]
    # The prefill's own tensors, [kv_heads, prompt_len, dim]; None where no row has them.
    whole: tuple[Tensor, Tensor] | None
    whole_rows: tuple[int, ...]  # rows that attend to all of them
    stacks: tuple[Stack, ...]  # the other rows' slots
    # Plain stacks' entries for the variable-length kernel; None where it is not used.
    packed: Packed | None
    apart: tuple[Stack, ...]  # the stacks that the kernel does not read
    order: Tensor  # [slots] int64, the slots as attention takes them: packed, apart, of whole rows
    place: Tensor  # [slots] int64, where in that order each slot is

    @property
    def kv_heads(self) -> int:
        return self.like[0].shape[0]

    @property
    def whole_bytes(self) -> int:
        """Bytes of the whole prompt's keys and values."""
        width = sum(each.shape[2] * each.element_size() for each in self.like)
        return self.kv_heads * self.prompt_len * width

    def row_bytes(self, row: int) -> int:
        """Bytes of the tensors that hold one row's prompt entries."""
        if row in self.whole_rows:
            return self.whole_bytes
        total = 0
        for stack in self.stacks:
            heads = sum(slot // self.kv_heads == row for slot in stack.slots)
            total += heads * stack.segment.nbytes // max(1, stack.segment.heads)
        return total

    def rows(self, keep: Sequence[int]) -> "PromptSlots":
        """Only these rows, numbered anew; what a stack keeps whole is not copied."""
        kv_heads = self.kv_heads
        new_row = {row: index for index, row in enumerate(keep)}
        stacks = []
        for stack in self.stacks:
            slots = stack.slots
            kept = [index for index, slot in enumerate(slots) if slot // kv_heads in new_row]
            moved = [new_row[slots[i] // kv_heads] * kv_heads + slots[i] % kv_heads for i in kept]
            if len(kept) == len(slots):
                stacks.append(_stack(stack.segment, moved, stack.index.device))
            elif kept:
                taken = torch.tensor(kept, device=stack.index.device)
                stacks.append(_stack(stack.segment.take(taken), moved, taken.device))
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
        stacks.append(_stack(segment, [slot for slot, *_ in members], keys.device))
    return _prompt_slots(prompt_len, like, (keys, values), whole, stacks)


def held_slots(
    prompt_len: int, like: tuple[Tensor, Tensor], held: Sequence[tuple[Segment, Sequence[int]]]
) -> PromptSlots:
    """One row of segments, each with its KV heads; `like` as of PromptSlots."""
    stacks = [_stack(segment, heads, like[0].device) for segment, heads in held]
    return _prompt_slots(prompt_len, like, None, (), stacks)


def _stack(segment: Segment, slots: Sequence[int], device: torch.device) -> Stack:
    return Stack(segment, tuple(slots), torch.tensor(slots, device=device))


def _prompt_slots(
    prompt_len: int,
    like: tuple[Tensor, Tensor],
    whole: tuple[Tensor, Tensor] | None,
    whole_rows: tuple[int, ...],
    stacks: Sequence[Stack],
) -> PromptSlots:
    """Lay plain stacks out for the variable-length kernel where it can be used."""
    if not whole_rows:
        whole = None  # or they would live as long as what was copied from them
    laid, packed = _packed(stacks, like)
    apart = tuple(stack for stack in stacks if packed is None or not _is_packable(stack))
    kv_heads, device = like[0].shape[0], like[0].device
    whole_slots = [row * kv_heads + head for row in whole_rows for head in range(kv_heads)]
    order = torch.cat(
        [
            *([] if packed is None else [packed.slots]),
            *(stack.index for stack in apart),
            torch.tensor(whole_slots, dtype=torch.int64, device=device),
        ]
    )
    return PromptSlots(
        prompt_len=prompt_len,
        like=like,
        whole=whole,
        whole_rows=whole_rows,
        stacks=(*laid, *apart),
        packed=packed,
        apart=apart,
        order=order,
        place=order.argsort(),
    )


def _is_packable(stack: Stack) -> bool:
    return isinstance(stack.segment, PlainSegment) and stack.segment.length > 0


def _packed(
    stacks: Sequence[Stack], like: tuple[Tensor, Tensor]
) -> tuple[list[Stack], Packed | None]:
    """The plain stacks that hold anything, as views of one tensor; None where no kernel serves."""
    keys, values = like
    kernel = usable_kernel(keys.device, keys.dtype, keys.shape[2])
    plain = [(stack, cast(PlainSegment, stack.segment)) for stack in stacks if _is_packable(stack)]
    if kernel is None or not plain or keys.shape[2] != values.shape[2]:
        return [], None
    flat_keys = torch.cat([segment.keys.flatten(0, 1) for _, segment in plain])
    flat_values = torch.cat([segment.values.flatten(0, 1) for _, segment in plain])
    sizes = [segment.heads * segment.length for _, segment in plain]
    views = [
        Stack(
            PlainSegment(some_keys.view_as(segment.keys), some_values.view_as(segment.values)),
            stack.slots,
            stack.index,
        )
        for (stack, segment), some_keys, some_values in zip(
            plain, torch.split(flat_keys, sizes), torch.split(flat_values, sizes), strict=True
        )
    ]
    lengths = [segment.length for _, segment in plain for _ in range(segment.heads)]
    slots = torch.cat([stack.index for stack, _ in plain])
    return views, pack(flat_keys, flat_values, slots, lengths, kernel)
