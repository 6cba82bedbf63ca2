"""KV heads of unequal length, attended to in one call of PyTorch's variable-length kernel.

The kernel sees every KV head as one sequence with a single head, and the queries of its group
as the tokens of that sequence: nothing is padded and no query head needs a copy of the keys.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from ckv_core.base.devices import is_cuda_like
from ckv_core.errors import is_out_of_memory

_TYPES = (torch.float16, torch.bfloat16)
_TOLERANCE = 0.02  # bfloat16 holds eight bits

# `varlen_attn` of torch 2.11 and later (2.10 lacks `scale`), with the log-sum-exp.
Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Packed:
    """Kept entries of many KV heads, one head after another."""

    keys: Tensor  # [entries of all heads, 1, head_dim]
    values: Tensor  # [entries of all heads, 1, head_dim]
    slots: Tensor  # [heads] int64, row * kv_heads + KV head
    starts: Tensor  # [heads + 1] int32, where each head begins
    longest: int  # entries of the longest head
    kernel: Kernel  # what attends to them

    def attention(self, queries: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention of each head's queries [heads, queries, head_dim] over its own entries.

        Gives the output, shaped alike, and log-sum-exp [heads, queries], both float32.
        """
        heads, count, head_dim = queries.shape
        starts = torch.arange(heads + 1, dtype=torch.int32, device=queries.device) * count
        out, total = self.kernel(
            queries.reshape(-1, 1, head_dim),
            self.keys,
            self.values,
            starts,
            self.starts,
            count,
            self.longest,
            return_aux=AuxRequest(lse=True),
            scale=scaling,
        )
        # With a single head it does not matter which of the two dimensions holds the heads.
        return out.view(heads, count, head_dim).float(), total.view(heads, count)


def pack(
    keys: Tensor, values: Tensor, slots: Tensor, lengths: Sequence[int], kernel: Kernel
) -> Packed:
    """Describe heads that lie one after another; the tensors are not copied.

    Of keys and values [entries of all heads, head_dim], with `slots` as of Packed and entries of
    each head, none of them 0.
    """
    ends = list(accumulate(lengths, initial=0))
    starts = torch.tensor(ends, dtype=torch.int32, device=keys.device)
    return Packed(keys[:, None], values[:, None], slots, starts, max(lengths), kernel)


def usable_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> Kernel | None:
    """PyTorch's kernel where it can be used for keys and values of these kinds, else None.

    It is tried once on each device, type and dimension: a GPU or build without it, a head size
    that it does not take and a PyTorch with another signature all show there.
    """
    fits = is_cuda_like(device) and dtype in _TYPES
    return varlen_attn if fits and _works(varlen_attn, device, dtype, head_dim) else None


@cache
def _works(kernel: Kernel, device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernel gives what a softmax written out gives."""
    generator = torch.Generator().manual_seed(0)
    lengths, scaling = [1, 300, 17], head_dim**-0.5
    queries, keys, values = (
        torch.randn(*shape, head_dim, generator=generator).to(device, dtype)
        for shape in ((3, 2), (sum(lengths),), (sum(lengths),))
    )
    try:
        packed = pack(keys, values, torch.arange(3), lengths, kernel)
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
    parts = [(query @ key.T * scaling, value) for query, key, value in heads]
    expected = torch.stack([logits.softmax(-1) @ value for logits, value in parts])
    totals = torch.stack([logits.logsumexp(-1) for logits, _ in parts])
    return all(
        torch.allclose(actual, wanted, rtol=_TOLERANCE, atol=_TOLERANCE)
        for actual, wanted in ((out, expected), (total, totals))
    )
