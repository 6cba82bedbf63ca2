"""Attention of a chunk's queries over what was read so far, without a tensor of chunk x n."""

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ckv_core.base.devices import is_cuda_like
from ckv_core.methods.attention import (
    MAX_LOGITS,
    Part,
    cudnn,
    flash,
    has_cudnn,
    has_flash,
    join,
    partial,
    written_out,
)
from ckv_core.methods.parts.scaling import Scaling, softmax
from ckv_core.models.shape import CUDA_CHUNK

_WIDE = 4  # chunks that cuDNN attends to at a time
_SLIDING = 256  # queries of a sliding layer that attend to a slice at a time


def causal_attention(
    query: Tensor, keys: Tensor, values: Tensor, scaling: Scaling
) -> tuple[Tensor, Tensor]:
    """Attention of the last positions; each sees all entries up to its own.

    A boolean mask would be turned into floats of chunk x n in every layer, and no kernel skips
    what it hides; without a fused kernel the logits would be as large. So the flash kernel is
    taken where it serves, and everything else joins two parts by their log-sum-exp.

    Args:
        query: [1, query_heads, tokens, head_dim], of the last `tokens` entries.
        keys: [1, kv_heads, entries, head_dim].
        values: [1, kv_heads, entries, value_dim].
        scaling: of the layer.

    Returns:
        [1, query_heads, tokens, value_dim], and the log-sum-exp of each query's logits, a sink's
        included, [1, query_heads, tokens] float32.
    """
    from_start = query.shape[2] == keys.shape[2]
    whole_chunks = query.shape[2] == CUDA_CHUNK and not keys.shape[2] % CUDA_CHUNK
    if whole_chunks and keys.shape == values.shape and has_cudnn(query, keys, scaling):
        part = _by_cudnn(query, keys, values, scaling)
    elif has_flash(query, values, scaling) and (from_start or query.device.type != "cpu"):
        part = flash(query, keys, values, scaling, is_causal=True)
    else:
        part = _joined(query, keys, values, scaling)
    return scaling.joined(*part, query.shape[2])


def sliding_attention(
    query: Tensor, keys: Tensor, values: Tensor, window: int, scaling: Scaling
) -> Tensor:
    """Each position attends to the newest `window` up to its own; else as `causal_attention`."""
    tokens, entries, masked = query.shape[2], keys.shape[2], functional.scaled_dot_product_attention
    out = query.new_empty(*query.shape[:3], values.shape[3])
    # Some queries at a time see a slice of the entries: no mask is made of the whole chunk.
    for first in range(0, tokens, _SLIDING):
        block = query[:, :, first : first + _SLIDING]
        start = entries - tokens + first
        end, seen = start + block.shape[2], max(0, start - window + 1)
        mask = visible(start, end, seen, end, window, query.device)
        part = (block, keys[:, :, seen:end], values[:, :, seen:end])
        if query.device.type == "cpu" and scaling.is_plain:
            own = masked(*part, attn_mask=mask, scale=scaling.factor, enable_gqa=True)
        else:
            own = _in_blocks(*part, mask, scaling)
        out[:, :, first : first + _SLIDING] = own
    return out


def with_gradient(
    query: Tensor, keys: Tensor, values: Tensor, window: int | None, scaling: Scaling
) -> Tensor:
    """Attention of the last positions that a gradient can go back through; shapes as above.

    The log-sum-exp that joins parts elsewhere has none. On CUDA no kernel takes this mask for
    grouped heads, so logits are written out, of a block of queries at a time.
    """
    tokens, entries = query.shape[2], keys.shape[2]
    mask = visible(entries - tokens, entries, 0, entries, window, query.device)
    if scaling.is_plain and not is_cuda_like(query.device):
        return functional.scaled_dot_product_attention(
            query, keys, values, mask, scale=scaling.factor, enable_gqa=True
        )
    block = max(1, MAX_LOGITS // (query.shape[1] * entries))
    if block >= tokens:
        return _written_with_gradient(query, keys, values, mask, scaling)
    blocks = zip(torch.split(query, block, 2), torch.split(mask, block), strict=True)
    parts = [
        checkpoint(_written_with_gradient, some, keys, values, seen, scaling, use_reentrant=False)
        for some, seen in blocks
    ]
    return torch.cat(cast("list[Tensor]", parts), 2)


def _written_with_gradient(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: Scaling
) -> Tensor:
    tokens, entries = mask.shape
    shape = (keys.shape[1], -1, tokens, entries)
    logits = torch.bmm(_grouped(query, keys).float(), keys[0].float().transpose(1, 2))
    logits = logits.view(shape) * scaling.factor
    if scaling.cap is not None:
        logits = (logits / scaling.cap).tanh() * scaling.cap
    logits = logits.masked_fill(~mask, -torch.inf)
    sink = scaling.grouped_sink(keys.shape[1])
    attention = softmax(logits, None if sink is None else sink[..., None])
    out = torch.bmm(attention.flatten(1, 2).to(values.dtype), values[0])
    return out.reshape(*query.shape[:3], values.shape[3])


def visible(
    query_start: int,
    query_end: int,
    key_start: int,
    key_end: int,
    window: int | None,
    device: torch.device,
) -> Tensor:
    """Causal (and sliding) visibility by position, [queries, keys] bool."""
    query = torch.arange(query_start, query_end, device=device)[:, None]
    key = torch.arange(key_start, key_end, device=device)
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _joined(query: Tensor, keys: Tensor, values: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
    """Earlier entries, which every query sees, and the chunk's own; joined exactly."""
    _, query_heads, tokens, _ = query.shape
    kv_heads, earlier = keys.shape[1], keys.shape[2] - tokens
    own_keys, own_values = keys[:, :, earlier:], values[:, :, earlier:]
    if has_flash(query, values, scaling):
        out, total = flash(query, own_keys, own_values, scaling, is_causal=True)
        own = out.float(), total
    else:
        own_keys, own_values = (
            states[0].repeat_interleave(query_heads // kv_heads, dim=0)
            for states in (own_keys, own_values)
        )
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril_()
        out, total = written_out(query[0], own_keys, own_values, scaling, mask)
        own = out[None], total[None]
    if not earlier:
        return own[0].to(query.dtype), own[1]
    before, before_total = partial(
        _grouped(query, keys), keys[0, :, :earlier], values[0, :, :earlier], scaling
    )
    shape = (1, query_heads, tokens)
    before_part = (before.reshape(*shape, values.shape[3]), before_total.reshape(shape))
    return join(own, before_part).to(query.dtype), torch.logaddexp(own[1], before_part[1])


def _by_cudnn(query: Tensor, keys: Tensor, values: Tensor, scaling: Scaling) -> Part:
    """Whole chunks of a prompt, in blocks of three shapes, whatever its length."""
    end = keys.shape[2] - query.shape[2]
    own = keys[:, :, end:], values[:, :, end:]
    out, total = cudnn(query, *own, scaling, is_causal=True)
    while end:
        size = _WIDE * query.shape[2] if end >= _WIDE * query.shape[2] else query.shape[2]
        block = keys[:, :, end - size : end], values[:, :, end - size : end]
        other = cudnn(query, *block, scaling)
        out, total, end = join((out, total), other), torch.logaddexp(total, other[1]), end - size
    return out.to(query.dtype), total


def _in_blocks(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: Scaling
) -> Tensor:
    """Where no kernel takes mask, shared heads and scaling: all logits would be written out."""
    grouped = _grouped(query, keys)
    repeated = mask.repeat(grouped.shape[1] // len(mask), 1)
    part = written_out(grouped, keys[0], values[0], scaling, repeated)
    out, _ = scaling.joined(*part, query.shape[2])
    return out.reshape(*query.shape[:3], values.shape[3]).to(query.dtype)


def _grouped(query: Tensor, keys: Tensor) -> Tensor:
    """[kv_heads, group * tokens, head_dim]: the queries of one KV head as one row of queries."""
    return query.reshape(keys.shape[1], -1, query.shape[3])
