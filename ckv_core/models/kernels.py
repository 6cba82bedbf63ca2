"""RoPE, the gating of an MLP and RMSNorm in one kernel of Triton each, for CUDA."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _turn(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - a kernel's arguments
    states, cos, sin, out, token_stride, row_stride, TOKENS, HALF: tl.constexpr, BLOCK: tl.constexpr
):
    """One head of one token: each half is turned by the other."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, BLOCK)
    inside = dims < HALF
    place = states + token * token_stride + head * 2 * HALF + dims
    angle = token // TOKENS * row_stride + token % TOKENS * 2 * HALF + dims
    target = out + (token * tl.num_programs(1) + head) * 2 * HALF + dims
    first = tl.load(place, mask=inside).to(tl.float32)
    second = tl.load(place + HALF, mask=inside).to(tl.float32)
    by_first = first * tl.load(cos + angle, mask=inside) - second * tl.load(
        sin + angle, mask=inside
    )
    tl.store(target, by_first, mask=inside)
    angle += HALF
    by_second = second * tl.load(cos + angle, mask=inside) + first * tl.load(
        sin + angle, mask=inside
    )
    tl.store(target + HALF, by_second, mask=inside)


def turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """States [rows, tokens, heads, head_dim] turned by RoPE; of each token they lie together.

    cos and sin are [rows or 1, tokens, head_dim].
    """
    rows, tokens, heads, dim = states.shape
    out = torch.empty(states.shape, dtype=states.dtype, device=states.device)
    cos, sin = cos.contiguous(), sin.contiguous()
    row_stride = cos.stride(0) if len(cos) > 1 else 0
    block = triton.next_power_of_2(dim // 2)
    grid = rows * tokens, heads
    _turn[grid](
        states, cos, sin, out, states.stride(1), row_stride, tokens, dim // 2, block, num_warps=1
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _gate(pairs, out, WIDTH, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Some channels of one token."""
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < WIDTH
    gate = tl.load(pairs + token * 2 * WIDTH + at, mask=inside).to(tl.float32)
    up = tl.load(pairs + token * 2 * WIDTH + WIDTH + at, mask=inside)
    tl.store(out + token * WIDTH + at, gate / (1 + tl.exp(-gate)) * up, mask=inside)


def gated(pairs: Tensor) -> Tensor:
    """SiLU of the first half of the channels times the second: [..., 2 * width] to [..., width]."""
    pairs = pairs.contiguous()
    *others, both = pairs.shape
    out = torch.empty(*others, both // 2, dtype=pairs.dtype, device=pairs.device)
    grid = pairs.numel() // both, triton.cdiv(both // 2, 1_024)
    _gate[grid](pairs, out, both // 2, 1_024)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _norm(inputs, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = at < WIDTH
    states = tl.load(inputs + row * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    states *= tl.rsqrt(tl.sum(states * states) / WIDTH + eps)
    weighed = states * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + at, weighed, mask=inside)


def normed(inputs: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of the last dimension, as wide as the weight is long."""
    inputs = inputs.contiguous()
    width, out = len(weight), torch.empty_like(inputs)
    block = triton.next_power_of_2(width)
    warps = max(1, min(8, block // 256))
    _norm[(inputs.numel() // width,)](inputs, weight, out, eps, width, block, num_warps=warps)
    return out
