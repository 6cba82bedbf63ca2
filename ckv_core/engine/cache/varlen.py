"""KV heads of unequal length, attended to in one call of a variable-length kernel.

The kernel sees every KV head as one sequence of entries with a single head, and the queries of its
group as query heads of one token: nothing is padded, no query head needs a copy of the keys, and
in this form alone PyTorch's kernel spreads a long head's entries over the device. Where Triton
compiles ours, that one is taken for single tokens, and reads eight and four bits as they are held.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ckv_core.base.devices import is_cuda_like, may_run_triton
from ckv_core.errors import is_out_of_memory
from ckv_core.methods.attention import ROOMS, Part, join, products
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.store import STORES, Codes, PlainSegment, Segment

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


# Attention to codes as they are held; the arguments are those of `split_kernel.over_codes`.
Reader = Callable[[Tensor, Codes, Tensor, Tensor, int, float], Part]


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Entries of one form, of many KV heads, one head after another."""

    segment: Segment  # all of them, as if of one head
    stretches: Stretches
    # What reads them as they are held; the codes, and [stretches] int32, the first row of scales of
    # each stretch. None: they are decoded.
    coded: tuple[Reader, Codes, Tensor] | None

    def attention(self, queries: Tensor, scaling: Scaling, kernel: Kernel) -> Part:
        is_few = queries.shape[1] <= ROOMS and queries.dtype == torch.bfloat16
        if self.coded is not None and is_few and scaling.cap is None:
            reader, codes, rows = self.coded
            starts, longest = self.stretches.starts, self.stretches.longest
            return reader(queries, codes, rows, starts, longest, scaling.factor)
        keys, values = (each[0] for each in self.segment.decoded())
        return over_stretches(kernel, queries, keys, values, self.stretches, scaling)


@dataclass(frozen=True, slots=True)
class Packed:
    """Kept entries of many KV heads in one store; a store may hold them in two forms."""

    parts: tuple[PackedPart, ...]
    # Of each stretch of entries, one part after another, row * kv_heads + KV head.
    slots: tuple[int, ...]
    kernel: Kernel  # what attends to entries that are decoded

    def attention(self, queries: Tensor, scaling: Scaling) -> Part:
        """Attention of each stretch's queries [stretches, queries, head_dim] over its own entries.

        Gives the output, shaped alike and of the same type, and log-sum-exp [stretches, queries]
        float32.
        """
        of_parts = torch.split(queries, [len(part.stretches.counts) - 1 for part in self.parts])
        found = [
            part.attention(own, scaling, self.kernel)
            for part, own in zip(self.parts, of_parts, strict=True)
        ]
        if len(found) == 1:
            return found[0]
        return torch.cat([out for out, _ in found]), torch.cat([total for _, total in found])


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
    parts, own_slots = [], []
    for at, part in enumerate(whole.stretches):
        held = [
            (slot, segment.stretches[at].length)
            for segment, own in zip(segments, slots, strict=True)
            for slot in own
            if segment.stretches[at].length
        ]
        if held:
            own_slots += [slot for slot, _ in held]
            codes = part.codes()
            reader = codes and usable_reader(codes.keys.device, codes.key_scales.shape[2])
            parts.append(_packed(part, [length for _, length in held], reader or None))
    return Packed(tuple(parts), tuple(own_slots), kernel), views


def _packed(segment: Segment, lengths: Sequence[int], reader: Reader | None) -> PackedPart:
    """Entries of heads of these lengths, one head after another."""
    device, codes = segment.tensors()["keys"].device, segment.codes()
    ends = torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int32, device=device)
    counts = torch.arange(len(ends), dtype=torch.int32, device=device)
    stretches, coded = Stretches(counts, ends, max(lengths)), None
    if reader is not None and codes is not None:
        coded = reader, codes, torch.searchsorted(codes.begins, ends[:-1], out_int32=True)
    return PackedPart(segment, stretches, coded)


def usable_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> Kernel | None:
    """The kernel for keys and values of these kinds: of Triton, else PyTorch's, else None.

    Each is tried once on each device, type and dimension: a GPU or build without it, a head size
    that it does not take and a PyTorch with another signature all show there.
    """
    fits = is_cuda_like(device) and dtype in _TYPES
    if not fits or not _works(_KERNEL, device, dtype, head_dim):
        return None
    split = _split_kernel(device, head_dim)
    is_split = split is not None and _works(split.attended, device, dtype, head_dim)
    return cast(ModuleType, split).attended if is_split else _KERNEL


def _split_kernel(device: torch.device, head_dim: int) -> ModuleType | None:
    """Triton's kernels, where they may be tried."""
    if not may_run_triton(device) or head_dim not in (32, 64, 128, 256):
        return None
    try:
        from ckv_core.engine.cache import split_kernel  # noqa: PLC0415 - with CUDA alone
    except ImportError:
        return None
    return split_kernel


@cache
def _works(kernel: Kernel, device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernel gives what a softmax written out gives, for a head that it splits too."""
    lengths = [1, 3_000, 17]

    def tried() -> bool:
        queries, keys, values = _random(lengths, device, dtype, head_dim)
        scaling, segments = Scaling(head_dim**-0.5), zip(keys, values, strict=True)
        whole, _ = PlainSegment.flat([PlainSegment(*each) for each in segments])
        out, total = _packed(whole, lengths, None).attention(queries, scaling, kernel)
        heads = zip(queries.float(), keys, values, strict=True)
        parts = [
            (query @ key[0].float().T * scaling.factor, value[0].float())
            for query, key, value in heads
        ]
        expected = torch.stack([logits.softmax(-1) @ value for logits, value in parts])
        return _same(
            (out, total), (expected, torch.stack([each.logsumexp(-1) for each, _ in parts]))
        )

    return _holds(tried)


@cache
def usable_reader(device: torch.device, head_dim: int) -> Reader | None:
    """`split_kernel.over_codes` where Triton compiles it and it agrees with decoding, else None."""
    split = _split_kernel(device, head_dim)
    if split is None:
        return None
    lengths = [33, 3_000, 17]

    def tried() -> bool:
        queries, keys, values = _random(lengths, device, torch.bfloat16, head_dim)
        for store in ("int8", "int4"):
            segments = [
                STORES[store].encode(*each, {"residual": 0})
                for each in zip(keys, values, strict=True)
            ]
            whole, _ = type(segments[0]).flat(segments)
            one, other = (
                _packed(whole.stretches[0], lengths, reader).attention(
                    queries, Scaling(head_dim**-0.5), _KERNEL
                )
                for reader in (split.over_codes, None)
            )
            if not _same(one, other):
                return False
        return True

    return split.over_codes if _holds(tried) else None


def _random(
    lengths: Sequence[int], device: torch.device, dtype: torch.dtype, head_dim: int
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Queries [heads, 2, head_dim], and keys and values [1, length, head_dim] of each head."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(len(lengths), 2), *((1, length) for length in (*lengths, *lengths))]
    queries, *states = (
        torch.randn(*shape, head_dim, generator=generator).to(device, dtype) for shape in shapes
    )
    return queries, states[: len(lengths)], states[len(lengths) :]


def _same(one: Part, other: Part) -> bool:
    return all(
        torch.allclose(each.float(), wanted.float(), rtol=_TOLERANCE, atol=_TOLERANCE)
        for each, wanted in zip(one, other, strict=True)
    )


def _holds(trial: Callable[[], bool]) -> bool:
    """The outcome of a trial of a kernel; one that fails is no kernel."""
    try:
        return trial()
    except Exception as error:  # no compiler, another signature, a GPU too old: of many kinds
        if is_out_of_memory(error):  # no property of the kernel: nothing may be remembered
            raise
        _LOG.info("A kernel cannot be used here: %s", error)
        return False


Join = Callable[[Part, Part, Tensor, torch.dtype, tuple[Tensor, Tensor] | None], Tensor]


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

        actual = joined(own, held, place, torch.float32, None)
    except Exception as error:  # no Triton, no compiler: of many kinds, and nothing is lost
        if is_out_of_memory(error):
            raise
        _LOG.warning("Attention is joined by PyTorch, for Triton cannot do it: %s", error)
        return None
    expected = join(own, (held[0][place], held[1][place]))
    return joined if torch.allclose(actual, expected, rtol=1e-4, atol=1e-4) else None
