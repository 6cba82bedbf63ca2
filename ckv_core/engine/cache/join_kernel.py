"""`methods.attention.join` and what is put back before it in one kernel of Triton, for CUDA.

A decoding step of few rows is a thousand small kernels; a dozen of each layer's were these.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ckv_core.methods.attention import Part


@triton.jit  # type: ignore[untyped-decorator]
def _join(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - a kernel's arguments
    own, own_total, held, held_total, place, second, has_none, out,
    own_row, own_query, held_row, held_query,
    QUERIES: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, HAS_SECOND: tl.constexpr,
):  # fmt: skip
    """One query of one slot; totals are read by their strides, the rest is contiguous."""
    row = tl.program_id(0).to(tl.int64)
    slot, query = row // QUERIES, row % QUERIES
    at = tl.load(place + slot)
    one = tl.load(own_total + slot * own_row + query * own_query)
    other = tl.load(held_total + at * held_row + query * held_query)
    most = tl.maximum(one, other)
    if HAS_SECOND:
        last = tl.load(second + slot)
        third = tl.load(held_total + last * held_row + query * held_query)
        third = tl.where(tl.load(has_none + slot), float("-inf"), third)
        most = tl.maximum(most, third)
        third = tl.exp(third - most)
    one, other = tl.exp(one - most), tl.exp(other - most)
    dims = tl.arange(0, BLOCK)
    inside = dims < DIM
    new = tl.load(own + row * DIM + dims, mask=inside).to(tl.float32)
    old = tl.load(held + (at * QUERIES + query) * DIM + dims, mask=inside).to(tl.float32)
    whole, weight = one * new + other * old, one + other
    if HAS_SECOND:
        old = tl.load(held + (last * QUERIES + query) * DIM + dims, mask=inside).to(tl.float32)
        whole, weight = whole + third * old, weight + third
    tl.store(out + row * DIM + dims, whole / weight, mask=inside)


def joined(
    own: Part, held: Part, place: Tensor, dtype: torch.dtype, second: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Attention over two parts together, or over three.

    Args:
        own: of each slot, as of `methods.attention.partial`; at least one entry each.
        held: the same in another order, of any float type.
        place: [slots] int64, where in that order each slot is.
        dtype: of the answer.
        second: where a further part of each slot is in that order, and [slots, 1] bool, whether
            it has none; None where no slot has one.

    Returns:
        [slots, queries, value_dim].
    """
    (own_out, own_total), (held_out, held_total) = own, held
    slots, queries, dim = own_out.shape
    out = torch.empty(slots, queries, dim, dtype=dtype, device=own_out.device)
    _join[(slots * queries,)](
        own_out.contiguous(),
        own_total,
        held_out.contiguous(),
        held_total,
        place,
        *(second or (None, None)),
        out,
        *own_total.stride(),
        *held_total.stride(),
        QUERIES=queries,
        DIM=dim,
        BLOCK=triton.next_power_of_2(dim),
        HAS_SECOND=second is not None,
        num_warps=1,
    )
    return out
