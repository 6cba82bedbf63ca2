"""Attention over one part of the keys, and its log-sum-exp, which joins it with other parts."""

import torch
from torch import Tensor

from ckv_core.runtime.devices import is_cuda_like

MAX_LOGITS = 2**24  # attention logits that exist at a time, 64 MiB of float32

Part = tuple[Tensor, Tensor]  # output in float32, log of the part's softmax denominator


def partial(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None = None
) -> Part:
    """Attention over one part of the keys.

    Args:
        queries: [slots, queries, head_dim].
        keys: [slots, entries, head_dim].
        values: [slots, entries, value_dim].
        scaling: factor of the logits.
        mask: [queries, entries] bool, True = visible; a query may see nothing.

    Returns:
        Output [slots, queries, value_dim] float32 and log-sum-exp [slots, queries] float32.
    """
    entries, same = keys.shape[1], keys.shape[2] == values.shape[2]
    if mask is None and entries and same and queries.device.type == "cpu":
        out, total = flash_on_cpu(queries[None], keys[None], values[None], scaling)
        return out[0], total[0]
    return written_out(queries, keys, values, scaling, mask)


def flash_on_cpu(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, *, is_causal: bool = False
) -> Part:
    """PyTorch's fused kernel, which holds no logits; equal dimensions.

    Args:
        queries: [rows, heads, queries, head_dim]; the output is shaped alike, in float32.
        keys: [rows, heads or fewer, entries, head_dim], at least one entry; a group of query heads
            may share one.
        values: as keys.
        scaling: factor of the logits.
        is_causal: query i sees entries up to i.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, total = flash(queries, keys, values, is_causal=is_causal, scale=scaling)
    return out.float(), total


def written_out(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None
) -> Part:
    """As `partial`, for any device, type and mask, in blocks of queries."""
    block = max(1, MAX_LOGITS // (len(queries) * max(1, keys.shape[1])))
    parts = [
        _block(queries[:, part], keys, values, scaling, None if mask is None else mask[part])
        for part in (slice(at, at + block) for at in range(0, queries.shape[1], block))
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([out for out, _ in parts], 1), torch.cat([total for _, total in parts], 1)


def _block(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None
) -> Part:
    """All queries at once; `logits` is worked on in place, for it is large."""
    # Half precision has no room for large logits and too few digits for softmax.
    if queries.dtype != torch.float32 and is_cuda_like(queries.device):
        logits = torch.bmm(queries, keys.transpose(1, 2), out_dtype=torch.float32)
    else:
        logits = torch.bmm(queries.float(), keys.transpose(1, 2).float())
    logits *= scaling
    if mask is not None:
        logits.masked_fill_(~mask, -torch.inf)
    total = logits.logsumexp(-1)
    logits -= total.clamp_min(torch.finfo(torch.float32).min)[..., None]
    return torch.bmm(logits.exp_().to(values.dtype), values).float(), total


def join(one: Part, other: Part) -> Tensor:
    """Attention over two parts together, float32; at most one of them may be empty."""
    (out, total), (other_out, other_total) = one, other
    joint = torch.logaddexp(total, other_total)
    out = out * (total - joint).exp()[..., None]
    out += other_out * (other_total - joint).exp()[..., None]
    return out
