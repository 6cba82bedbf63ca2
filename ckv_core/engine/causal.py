"""Causal attention of a chunk's queries over everything read so far, without a chunk x n mask."""

from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from ckv_core.engine.partial import flash_on_cpu, join


def causal_attention(query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Attention of the last positions; each sees all entries up to its own.

    A boolean mask would be turned into floats of chunk x n in every layer, and no kernel skips
    what it hides. So the CPU path joins two parts by their log-sum-exp, and CUDA gets a causal
    bias that its flash kernel knows by name.

    Args:
        query: [1, query_heads, tokens, head_dim], of the last `tokens` entries.
        keys: [1, kv_heads, entries, head_dim].
        values: [1, kv_heads, entries, value_dim].
        scaling: factor of the logits.

    Returns:
        [1, query_heads, tokens, value_dim].
    """
    tokens, entries = query.shape[2], keys.shape[2]
    if tokens == entries:
        return functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, scale=scaling, enable_gqa=True
        )
    if query.device.type == "cpu" and keys.shape[3] == values.shape[3]:
        return _joined(query, keys, values, scaling)
    return functional.scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=causal_lower_right(tokens, entries),
        scale=scaling,
        enable_gqa=True,
    )


def _joined(query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Earlier entries, which every query sees, and the chunk's own; joined exactly."""
    _, query_heads, tokens, head_dim = query.shape
    kv_heads, earlier = keys.shape[1], keys.shape[2] - tokens
    group_size = query_heads // kv_heads
    # The queries of one KV head see the same earlier entries: one row of queries for all.
    grouped = query.reshape(1, kv_heads, group_size * tokens, head_dim)
    before, before_total = flash_on_cpu(
        grouped, keys[:, :, :earlier], values[:, :, :earlier], scaling
    )
    own = flash_on_cpu(
        query,
        keys[:, :, earlier:].repeat_interleave(group_size, dim=1),
        values[:, :, earlier:].repeat_interleave(group_size, dim=1),
        scaling,
        is_causal=True,
    )
    shape = (1, query_heads, tokens)
    before_part = (before.reshape(*shape, head_dim), before_total.reshape(shape))
    return join(own, before_part).to(query.dtype)
