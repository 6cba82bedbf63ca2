"""RaggedCache: per layer, the kept prompt entries of all rows, each head as long as it needs.

KV heads of equal length are stacked into one tensor, so that attention over many rows is a
few batched products and nothing is padded. Where PyTorch's variable-length kernel can be used,
the stacks lie in one tensor that it reads as a whole. Rows that keep everything share the
prefill's tensors. The prompt part never changes; what decoding adds lies in a dense tail.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ckv_core.cache.varlen import Packed, pack, usable_kernel


@dataclass(frozen=True, slots=True)
class Stack:
    """KV heads, of any rows, that keep the same number of entries.

    Attributes:
        keys: [heads, length, head_dim].
        values: [heads, length, value_dim].
        slots: per head, row * kv_heads + KV head.
        index: [heads] int64, the same on the device: reading it back would wait for the device.
    """

    keys: Tensor
    values: Tensor
    slots: tuple[int, ...]
    index: Tensor


@dataclass(frozen=True, slots=True)
class RaggedLayer:
    """Prompt entries of one layer.

    Attributes:
        keys, values: [kv_heads, prompt_len, dim], the prefill's own tensors.
        whole_rows: rows that attend to all of them.
        whole_index: [whole rows] int64, the same on the device.
        stacks: the other rows' heads, by length.
        packed: the same entries for the variable-length kernel; None where it is not used.
    """

    keys: Tensor
    values: Tensor
    whole_rows: tuple[int, ...]
    whole_index: Tensor
    stacks: tuple[Stack, ...]
    packed: Packed | None = None

    def row_bytes(self, row: int) -> int:
        """Bytes of the tensors that hold one row's prompt entries."""
        if row in self.whole_rows:
            return self.keys.nbytes + self.values.nbytes
        kv_heads = self.keys.shape[0]
        total = 0
        for stack in self.stacks:
            heads = sum(slot // kv_heads == row for slot in stack.slots)
            total += heads * (stack.keys[0].nbytes + stack.values[0].nbytes)
        return total

    def rows(self, keep: Sequence[int]) -> "RaggedLayer":
        """Only these rows, numbered anew; what a stack keeps whole is not copied."""
        kv_heads = self.keys.shape[0]
        new_row = {row: index for index, row in enumerate(keep)}
        stacks = []
        for stack in self.stacks:
            slots = stack.slots
            kept = [index for index, slot in enumerate(slots) if slot // kv_heads in new_row]
            moved = [new_row[slots[i] // kv_heads] * kv_heads + slots[i] % kv_heads for i in kept]
            if len(kept) == len(slots):
                stacks.append(_stack(stack.keys, stack.values, moved))
            elif kept:
                stacks.append(_stack(stack.keys[kept], stack.values[kept], moved))
        whole = tuple(new_row[row] for row in self.whole_rows if row in new_row)
        return _layer(self.keys, self.values, whole, stacks)


def compact(keys: Tensor, values: Tensor, keep_masks: Sequence[Tensor | None]) -> RaggedLayer:
    """Copy what each row keeps of one layer.

    Args:
        keys: [kv_heads, prompt_len, head_dim].
        values: [kv_heads, prompt_len, value_dim].
        keep_masks: per row [kv_heads, prompt_len] bool, or None for everything.
    """
    kv_heads, prompt_len, _ = keys.shape
    whole = tuple(row for row, mask in enumerate(keep_masks) if mask is None)
    evicting = [(row, mask) for row, mask in enumerate(keep_masks) if mask is not None]
    if not evicting:
        return _layer(keys, values, whole, ())
    marked = torch.cat([mask for _, mask in evicting])  # [rows * kv_heads, prompt_len]
    heads, positions = marked.nonzero().unbind(1)
    entries = heads % kv_heads * prompt_len + positions
    slots = [row * kv_heads + head for row, _ in evicting for head in range(kv_heads)]
    by_length: dict[int, list[tuple[int, Tensor]]] = {}
    for slot, kept in zip(slots, torch.split(entries, marked.sum(1).tolist()), strict=True):
        by_length.setdefault(len(kept), []).append((slot, kept))
    stacks = []
    for length, members in by_length.items():
        kept = torch.cat([entries for _, entries in members])
        # Whole rows of one table are copied in one go; an index per head and position is not.
        shape = (len(members), length)
        stacks.append(
            _stack(
                keys.flatten(0, 1).index_select(0, kept).view(*shape, keys.shape[2]),
                values.flatten(0, 1).index_select(0, kept).view(*shape, values.shape[2]),
                [slot for slot, _ in members],
            )
        )
    return _layer(keys, values, whole, stacks)


def _stack(keys: Tensor, values: Tensor, slots: Sequence[int]) -> Stack:
    return Stack(keys, values, tuple(slots), torch.tensor(slots, device=keys.device))


def _layer(
    keys: Tensor, values: Tensor, whole_rows: tuple[int, ...], stacks: Sequence[Stack]
) -> RaggedLayer:
    """Lay the stacks out for the variable-length kernel where it can be used."""
    index = torch.tensor(whole_rows, dtype=torch.int64, device=keys.device)
    kernel = usable_kernel(keys.device, keys.dtype, keys.shape[2])
    held = [stack for stack in stacks if stack.keys.shape[1]]
    if kernel is None or not held or keys.shape[2] != values.shape[2]:
        return RaggedLayer(keys, values, whole_rows, index, tuple(stacks))
    flat_keys = torch.cat([stack.keys.flatten(0, 1) for stack in held])
    flat_values = torch.cat([stack.values.flatten(0, 1) for stack in held])
    sizes = [stack.keys.shape[0] * stack.keys.shape[1] for stack in held]
    views = [
        Stack(
            some_keys.view_as(stack.keys),
            some_values.view_as(stack.values),
            stack.slots,
            stack.index,
        )
        for stack, some_keys, some_values in zip(
            held, torch.split(flat_keys, sizes), torch.split(flat_values, sizes), strict=True
        )
    ]
    lengths = [stack.keys.shape[1] for stack in held for _ in stack.slots]
    slots = torch.cat([stack.index for stack in held])
    packed = pack(flat_keys, flat_values, slots, lengths, kernel)
    return RaggedLayer(keys, values, whole_rows, index, tuple(views), packed)


def retained_bytes(layers: Sequence[RaggedLayer], row: int) -> int:
    """Bytes that hold one row's prompt entries in the given layers."""
    return sum(layer.row_bytes(row) for layer in layers)
