"""Attention of few queries to many entries, spread over the device, in a kernel of Triton for CUDA.

FlashAttention-2 cuts no head into parts once there are many heads, and has rooms for 64 queries or
more where a KV head's group has four. Here each head's entries are cut into parts of equal length,
and a second kernel joins them by their log-sum-exp (Flash-Decoding, Dao et al. 2023). Entries of
eight and four bits are read as they are held: a number is `least + step * code`.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ckv_core.methods.attention import ROOMS, Part
from ckv_core.methods.parts.store import GROUP, Codes

_LEAST = 128  # entries of a part, or joining costs more than it gains


@triton.jit  # type: ignore[untyped-decorator]
def _numbers(scales, codes, is_high: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers of the low or high four bits, by their scales, of 16 bits least and 16 step.

    The bits of a code under those of 128 are 128 and the code, which costs no conversion.
    """
    least = (scales & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    step = (scales >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    bits = codes >> 4 if is_high else codes & 15
    moved = (bits.to(tl.int32) << 16 | 0x43000000).to(tl.float32, bitcast=True)
    return (least - 128.0 * step + step * moved).to(tl.bfloat16)


@triton.jit(do_not_specialize=["PART", "PARTS"])  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0915, PLR0917 - a kernel
    queries, keys, values, key_scales, value_scales, rows, starts, used, out, total,
    scale, PART, PARTS,
    QUERIES: tl.constexpr, DIM: tl.constexpr, BITS: tl.constexpr, HAS_USED: tl.constexpr,
    BLOCK: tl.constexpr, ROOMS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Attention of a head's queries to one part of its entries, and their log-sum-exp.

    Of four bits, a byte holds an even channel and the odd one after it, and a block is one group.
    """
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = tl.load(starts + head).to(tl.int64)
    length = tl.load(used + head) if HAS_USED else (tl.load(starts + head + 1) - start).to(tl.int32)
    first = part * PART
    end = tl.minimum(first + PART, length)
    CHANNELS: tl.constexpr = 2 if BITS == 4 else 1  # of a cell
    WIDTH: tl.constexpr = DIM // CHANNELS
    room, place, at = tl.arange(0, ROOMS), tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    wanted = (room < QUERIES)[:, None]
    cells = place[:, None] * WIDTH + at[None, :]
    keys += start * WIDTH
    values += start * WIDTH
    query = queries + (head * QUERIES + room[:, None]) * DIM + at[None, :] * CHANNELS
    even = tl.load(query, mask=wanted, other=0.0)
    if BITS == 4:
        odd = tl.load(query + 1, mask=wanted, other=0.0)
        key_scales = key_scales.to(tl.pointer_type(tl.uint32))  # least and step at once
        key_scales += tl.load(rows + head).to(tl.int64) * DIM
        value_scales = value_scales.to(tl.pointer_type(tl.uint32)) + start * (DIM // GROUP)
        own = place[:, None] * (DIM // GROUP) + (at // (GROUP // 2))[None, :]
        odd_sum = tl.zeros([ROOMS, WIDTH], tl.float32)
    elif BITS == 8:
        step = tl.load(key_scales + tl.load(rows + head).to(tl.int64) * DIM + at)
        even = (even * step[None, :]).to(tl.bfloat16)
        value_scales += start
    most = tl.full([ROOMS], float("-inf"), tl.float32)
    weight = tl.zeros([ROOMS], tl.float32)
    even_sum = tl.zeros([ROOMS, WIDTH], tl.float32)
    for block in range(first, end, BLOCK):
        inside = block + place < end
        codes = tl.load(keys + block * WIDTH + cells, mask=inside[:, None], other=0)
        if BITS == 16:
            logits = tl.dot(even, tl.trans(codes))
        elif BITS == 8:
            logits = tl.dot(even, tl.trans(codes.to(tl.bfloat16)))
        else:
            # Of its group, the scales of an even channel and of the odd one after it.
            pair = key_scales + block // GROUP * DIM + at[None, :] * 2
            logits = tl.dot(even, tl.trans(_numbers(tl.load(pair), codes, False)))
            logits = tl.dot(odd, tl.trans(_numbers(tl.load(pair + 1), codes, True)), logits)
        logits = tl.where(inside[None, :], logits * scale, float("-inf"))
        higher = tl.maximum(most, tl.max(logits, 1))
        shares, shrink = tl.exp(logits - higher[:, None]), tl.exp(most - higher)
        weight, most = weight * shrink + tl.sum(shares, 1), higher
        even_sum *= shrink[:, None]
        codes = tl.load(values + block * WIDTH + cells, mask=inside[:, None], other=0)
        if BITS == 16:
            even_sum = tl.dot(shares.to(codes.dtype), codes, even_sum)
        elif BITS == 8:
            steps = tl.load(value_scales + block + place, mask=inside, other=0.0)
            weighed = (shares * steps[None, :]).to(tl.bfloat16)
            even_sum = tl.dot(weighed, codes.to(tl.bfloat16), even_sum)
        else:
            place_scales = value_scales + block * (DIM // GROUP) + own
            scales = tl.load(place_scales, mask=inside[:, None], other=0)
            weighed = shares.to(tl.bfloat16)
            even_sum = tl.dot(weighed, _numbers(scales, codes, False), even_sum)
            odd_sum *= shrink[:, None]
            odd_sum = tl.dot(weighed, _numbers(scales, codes, True), odd_sum)
    is_empty = first >= end  # a part after the end of a short head
    weight = tl.where(is_empty, 1.0, weight)
    target = (head * PARTS + part) * QUERIES + room
    tl.store(total + target, most + tl.log(weight), mask=room < QUERIES)
    answer = out + target[:, None] * DIM + at[None, :] * CHANNELS
    tl.store(answer, even_sum / weight[:, None], mask=wanted)
    if BITS == 4:
        tl.store(answer + 1, odd_sum / weight[:, None], mask=wanted)


@triton.jit(do_not_specialize=["PARTS"])  # type: ignore[untyped-decorator]
def _join_parts(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - a kernel's arguments
    outs, totals, out, total, PARTS, QUERIES: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One query of one head: the parts of its entries by their log-sum-exp, one of which counts."""
    row = tl.program_id(0).to(tl.int64)
    head, query = row // QUERIES, row % QUERIES
    part, at = tl.arange(0, BLOCK), tl.arange(0, DIM)
    source = (head * PARTS + part) * QUERIES + query
    own = tl.load(totals + source, mask=part < PARTS, other=float("-inf"))
    most = tl.max(own, 0)
    shares = tl.exp(own - most)
    whole = tl.sum(shares, 0)
    cells = source[:, None] * DIM + at[None, :]
    found = tl.load(outs + cells, mask=(part < PARTS)[:, None], other=0.0)
    answer = tl.sum(found * shares[:, None], 0) / whole
    tl.store(out + row * DIM + at, answer)
    tl.store(total + row, most + tl.log(whole))


def attended(  # noqa: PLR0913, PLR0917 - as PyTorch's kernel is called
    query: Tensor, key: Tensor, value: Tensor, starts_q: Tensor, starts_k: Tensor, longest_q: int,
    longest_k: int, dropout: float, causal: bool, debug: bool, *, scale: float,
    seqused_k: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Attention of single tokens to heads of any length, called as PyTorch's kernel is.

    More queries than `ROOMS` are left to that kernel.

    Args:
        query: [heads, queries, head_dim], in half precision, head_dim a power of two.
        key: [entries, 1, head_dim], one head after another.
        value: as key.
        starts_q: not read, for each head has one token.
        starts_k: [heads + 1] int32, where the entries of each head begin.
        longest_q: 1.
        longest_k: entries of the longest head.
        dropout: 0.
        causal: False.
        debug: False.
        scale: of the dot products.
        seqused_k: [heads] int32, entries of each that count; None for all.

    Returns:
        The output, shaped and typed as query, and log-sum-exp [queries, heads] float32.
    """
    if query.shape[1] > ROOMS:
        found = torch.ops.aten._flash_attention_forward(
            query, key, value, starts_q, starts_k, longest_q, longest_k, dropout, causal, debug,
            scale=scale, seqused_k=seqused_k,
        )  # fmt: skip
        return found[:2]  # type: ignore[no-any-return]
    held = (key, value, None, None, None)
    out, total = _run(query, held, starts_k, seqused_k, longest_k, scale, 16)
    return out, total.T


def over_codes(
    query: Tensor, codes: Codes, rows: Tensor, starts: Tensor, longest: int, scale: float
) -> Part:
    """Attention to entries that are held in eight or four bits, of at most `ROOMS` queries.

    Args:
        query: [heads, queries, head_dim] bfloat16.
        codes: the entries, one head after another.
        rows: [heads] int32, of the scales of keys, where those of each head begin.
        starts: [heads + 1] int32, where the entries of each head begin.
        longest: entries of the longest head.
        scale: of the dot products.

    Returns:
        The output, shaped as query, and log-sum-exp [heads, queries], both float32 or narrower.
    """
    held = (codes.keys, codes.values, codes.key_scales, codes.value_scales, rows)
    return _run(query, held, starts, None, longest, scale, codes.bits)


def _run(  # noqa: PLR0913, PLR0917 - what both have in common
    query: Tensor,
    held: tuple[Tensor | None, ...],
    starts: Tensor,
    used: Tensor | None,
    longest: int,
    scale: float,
    bits: int,
) -> Part:
    heads, queries, dim = query.shape
    programs = _processors(query.device) * (2 if bits == 16 else 4)
    parts = max(1, min(programs // heads, triton.cdiv(longest, _LEAST)))
    part = triton.cdiv(triton.cdiv(longest, parts), GROUP) * GROUP
    block = GROUP if bits == 4 else min(128, (128 if parts == 1 else 64) * 128 // dim)
    outs = query.new_empty(heads, parts, queries, dim, dtype=None if parts == 1 else torch.float32)
    totals = torch.empty(heads, parts, queries, device=query.device)
    _attend[(heads, parts)](
        query.contiguous(), *held, starts, used, outs, totals, scale, part, parts,
        queries, dim, bits, used is not None, block, ROOMS, GROUP,
        num_warps=2 if bits == 4 else 4, num_stages=1 if bits == 4 else 3,
    )  # fmt: skip
    if parts == 1:
        return outs[:, 0], totals[:, 0]
    out, total = torch.empty_like(query), torch.empty(heads, queries, device=query.device)
    grid, block = (heads * queries,), triton.next_power_of_2(parts)
    _join_parts[grid](outs, totals, out, total, parts, queries, dim, block)
    return out, total


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
