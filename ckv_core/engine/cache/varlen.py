"""KV heads of unequal length, attended to in one call of PyTorch's variable-length kernel.

The kernel sees every KV head as one sequence of entries with a single head, and the queries of its
group as query heads of one token: nothing is padded, no query head needs a copy of the keys, and
in this form alone the kernel spreads a long head's entries over the device.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ckv_core.base.devices import is_cuda_like, may_run_triton
from ckv_core.errors import is_out_of_memory
from ckv_core.methods.attention import Part, join, products
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.store import PlainSegment, Segment

_LOG = logging.getLogger(__name__)

_TYPES = (torch.float16, torch.bfloat16)
_TOLERANCE = 0.02  # bfloat16 holds eight bits

# Called as `torch.nn.attention.varlen` does, which fills a tensor of zeros beside it at each call.
Kernel = Callable[..., Any]
_KERNEL: Kernel = torch.ops.aten._flash_attention_forward


class Stretches(NamedTuple):
    """Stretches of entries that lie one after another."""

    counts: Tensor  # [stretches + 1] int32, 0, 1, 2 and so on
    starts: Tensor  # [stretches + 1] int32, where each begins
    longest: int  # entries of the longest
    used: Tensor | None = None  # [stretches] int32, entries that count in each; None: all


@dataclass(frozen=True, slots=True)
class Packed:
    """Kept entries of many KV heads in one store, one head after another."""

    segment: Segment  # all of them, as if of one head
    # Of each stretch of entries, row * kv_heads + KV head; a store may hold a head in two.
    slots: tuple[int, ...]
    stretches: Stretches
    kernel: Kernel  # what attends to them

    def attention(self, queries: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
        """Attention of each stretch's queries [stretches, queries, head_dim] over its own entries.

        Gives the output, shaped alike and of the same type, and log-sum-exp [stretches, queries]
        float32.
        """
        keys, values = (each[0] for each in self.segment.decoded())
        return over_stretches(self.kernel, queries, keys, values, self.stretches, scaling)


def over_stretches(
    kernel: Kernel,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    stretches: Stretches,
    scaling: Scaling,
) -> tuple[Tensor, Tensor]:
    """Attention of each stretch's queries [stretches, queries, head_dim] over its own entries.

    Args:
        kernel: what attends.
        queries: of each stretch.
        keys: [entries, head_dim], one stretch after another.
        values: as keys.
        stretches: where each is.
        scaling: of the layer.

    Returns:
        The output, shaped as queries and of their type, and log-sum-exp [stretches, queries]
        float32.
    """
    if scaling.cap is not None:
        return _written_out(queries, keys, values, stretches, scaling)
    out, total, *_ = kernel(
        queries,
        keys[:, None],
        values[:, None],
        stretches.counts,
        stretches.starts,
        1,
        stretches.longest,
        0.0,  # no dropout
        False,  # not causal
        False,  # no debug mask
        scale=scaling.factor,
        seqused_k=stretches.used,
    )
    return out, total.T


def _written_out(
    queries: Tensor, keys: Tensor, values: Tensor, stretches: Stretches, scaling: Scaling
) -> tuple[Tensor, Tensor]:
    """Compute `over_stretches` with capped logits, which no kernel does, on a padded copy."""
    places = torch.arange(stretches.longest, device=keys.device)
    starts = stretches.starts[:-1]
    used = stretches.starts[1:] - starts if stretches.used is None else stretches.used
    seen = places < used[:, None]
    places = (starts[:, None] + places).where(seen, 0)
    logits = scaling.logits_(products(queries, keys[places]))
    logits.masked_fill_(~seen[:, None], -torch.inf)
    total = logits.logsumexp(-1)
    return torch.bmm(logits.softmax(-1).to(values.dtype), values[places]), total


def pack(
    segments: Sequence[Segment], slots: Sequence[Sequence[int]], kernel: Kernel
) -> tuple[Packed, list[Segment]]:
    """Lay segments of one kind out together, as views of which they are handed back.

    `slots` are of the heads of each, as of Packed.
    """
    whole, views = type(segments[0]).flat(segments)
    held = [
        (slot, part.length)
        for parts in zip(*(each.stretches for each in segments), strict=True)
        for part, own in zip(parts, slots, strict=True)
        for slot in own
        if part.length
    ]
    own_slots, lengths = zip(*held, strict=True)
    device = whole.decoded()[0].device
    ends = torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int32, device=device)
    counts = torch.arange(len(ends), dtype=torch.int32, device=device)
    return Packed(whole, own_slots, Stretches(counts, ends, max(lengths)), kernel), views


def usable_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> Kernel | None:
    """PyTorch's kernel where it can be used for keys and values of these kinds, else None.

    It is tried once on each device, type and dimension: a GPU or build without it, a head size
    that it does not take and a PyTorch with another signature all show there.
    """
    fits = is_cuda_like(device) and dtype in _TYPES
    return _KERNEL if fits and _works(_KERNEL, device, dtype, head_dim) else None


@cache
def _works(kernel: Kernel, device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernel gives what a softmax written out gives, for a head that it splits too."""
    generator = torch.Generator().manual_seed(0)
    lengths, scaling = [1, 3_000, 17], Scaling(head_dim**-0.5)
    queries, keys, values = (
        torch.randn(*shape, head_dim, generator=generator).to(device, dtype)
        for shape in ((3, 2), (sum(lengths),), (sum(lengths),))
    )
    pairs = zip(torch.split(keys, lengths), torch.split(values, lengths), strict=True)
    try:
        segments = [PlainSegment(*(each[None] for each in pair)) for pair in pairs]
        packed, _ = pack(segments, [(0,), (1,), (2,)], kernel)
        out, total = packed.attention(queries, scaling)
    except (RuntimeError, TypeError) as error:
        if is_out_of_memory(error):  # no property of the kernel: nothing may be remembered
            raise
        return False
    heads = zip(
        queries.float(),
        torch.split(keys.float(), lengths),
        torch.split(values.float(), lengths),
        strict=True,
    )
    parts = [(query @ key.T * scaling.factor, value) for query, key, value in heads]
    expected = torch.stack([logits.softmax(-1) @ value for logits, value in parts])
    totals = torch.stack([logits.logsumexp(-1) for logits, _ in parts])
    return all(
        torch.allclose(actual.float(), wanted, rtol=_TOLERANCE, atol=_TOLERANCE)
        for actual, wanted in ((out, expected), (total, totals))
    )


Join = Callable[[Part, Part, Tensor, torch.dtype], Tensor]


@cache
def usable_join(device: torch.device) -> Join | None:
    """`join_kernel.joined` where Triton compiles it and it gives what `join` gives, else None."""
    if not may_run_triton(device):
        return None
    own, held = (
        (torch.randn(6, 3, 24, device=device), 5 * torch.randn(3, 6, device=device).T)
        for _ in range(2)
    )
    place = torch.arange(5, -1, -1, device=device)
    try:
        from ckv_core.engine.cache.join_kernel import joined  # noqa: PLC0415 - with CUDA alone

        actual = joined(own, held, place, torch.float32)
    except Exception as error:  # no Triton, no compiler: of many kinds, and nothing is lost
        if is_out_of_memory(error):
            raise
        _LOG.warning("Attention is joined by PyTorch, for Triton cannot do it: %s", error)
        return None
    expected = join(own, (held[0][place], held[1][place]))
    return joined if torch.allclose(actual, expected, rtol=1e-4, atol=1e-4) else None
