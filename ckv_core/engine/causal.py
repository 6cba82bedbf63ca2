"""Attention of a chunk's queries over what was read so far, without a tensor of chunk x n."""

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from ckv_core.base.devices import is_cuda_like
from ckv_core.methods.attention import flash_on_cpu, join, partial, written_out

_SLIDING = 256  # queries of a sliding layer that attend to a slice at a time
_FLASH_HEAD_DIM = 256  # the largest that CUDA's flash kernel takes
_QUERIES = 128  # of one KV head's group whose logits exist at a time, where written out


def causal_attention(
    query: Tensor, keys: Tensor, values: Tensor, scaling: float
) -> tuple[Tensor, Tensor | None]:
    """Attention of the last positions; each sees all entries up to its own.

    A boolean mask would be turned into floats of chunk x n in every layer, and no kernel skips
    what it hides; without a fused kernel the logits would be as large. So CUDA gets a causal bias
    where its flash kernel serves, and everything else joins two parts by their log-sum-exp.

    Args:
        query: [1, query_heads, tokens, head_dim], of the last `tokens` entries.
        keys: [1, kv_heads, entries, head_dim].
        values: [1, kv_heads, entries, value_dim].
        scaling: factor of the logits.

    Returns:
        [1, query_heads, tokens, value_dim], and the log-sum-exp of each query's logits
        [1, query_heads, tokens] float32, where the kernel tells it.
    """
    tokens, entries, same = query.shape[2], keys.shape[2], keys.shape[3] == values.shape[3]
    if tokens == entries and same and query.device.type == "cpu":
        out, total = flash_on_cpu(query, keys, values, scaling, is_causal=True)
        return out.to(query.dtype), total
    if same and has_cuda_flash(query.device, query.dtype, query.shape[3]):
        return functional.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=None if tokens == entries else causal_lower_right(tokens, entries),
            is_causal=tokens == entries,
            scale=scaling,
            enable_gqa=True,
        ), None
    return _joined(query, keys, values, scaling)


def log_sum_exp(query: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Compute the log-sum-exp that a kernel of `causal_attention` does not tell, by blocks.

    Of queries [query_heads, tokens, head_dim], the last of the keys [kv_heads, entries, head_dim],
    to [query_heads, tokens] float32.
    """
    grouped = query.reshape(len(keys), -1, *query.shape[1:])
    start = keys.shape[1] - query.shape[1]
    totals = torch.empty(grouped.shape[:3], dtype=torch.float32, device=query.device)
    for first in range(0, query.shape[1], _QUERIES):
        block = grouped[:, :, first : first + _QUERIES].float()
        seen = start + first + block.shape[2]
        unseen = ~visible(start + first, seen, 0, seen, None, query.device)
        for head, own in enumerate(block):
            logits = (own @ keys[head, :seen].float().T).mul_(scaling)
            part = logits.masked_fill_(unseen, -torch.inf).logsumexp(-1)
            totals[head, :, first : first + _QUERIES] = part
    return totals.flatten(0, 1)


def sliding_attention(
    query: Tensor, keys: Tensor, values: Tensor, window: int, scaling: float
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
        if query.device.type == "cpu":
            own = masked(*part, attn_mask=mask, scale=scaling, enable_gqa=True)
        else:
            own = _in_blocks(*part, mask, scaling)
        out[:, :, first : first + _SLIDING] = own
    return out


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


def has_cuda_flash(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether PyTorch's flash kernel serves there: half precision, from Ampere on, small heads."""
    fits = dtype in (torch.float16, torch.bfloat16) and head_dim <= _FLASH_HEAD_DIM
    return fits and is_cuda_like(device) and torch.cuda.get_device_capability(device) >= (8, 0)


def _joined(query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Earlier entries, which every query sees, and the chunk's own; joined exactly."""
    _, query_heads, tokens, _ = query.shape
    kv_heads, earlier = keys.shape[1], keys.shape[2] - tokens
    own_keys, own_values = keys[:, :, earlier:], values[:, :, earlier:]
    if query.device.type == "cpu" and keys.shape[3] == values.shape[3]:
        own = flash_on_cpu(query, own_keys, own_values, scaling, is_causal=True)
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


def _in_blocks(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """For CUDA: no kernel of it takes a mask and shared heads, all logits would be written out."""
    grouped = _grouped(query, keys)
    repeated = mask.repeat(grouped.shape[1] // len(mask), 1)
    out, _ = written_out(grouped, keys[0], values[0], scaling, repeated)
    return out.reshape(*query.shape[:3], values.shape[3]).to(query.dtype)


def _grouped(query: Tensor, keys: Tensor) -> Tensor:
    """[kv_heads, group * tokens, head_dim]: the queries of one KV head as one row of queries."""
    return query.reshape(keys.shape[1], -1, query.shape[3])
