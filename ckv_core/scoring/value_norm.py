"""How large an entry's contribution to the output can be: the L1 norm of V W_O."""

import torch
from torch import Tensor

from ckv_core.shapes import check_shape

_BLOCK = 4096


def value_norm(values: Tensor, output_weight: Tensor) -> Tensor:
    """L1 norm of each value row through its query head's slice of W_O (CriticalKV, eq. 8).

    Computed in blocks of positions: the [query_heads, prompt_len, hidden] product never exists.

    Args:
        values: [kv_heads, prompt_len, value_dim].
        output_weight: [hidden, query_heads * value_dim], the weight of o_proj.

    Returns:
        [query_heads, prompt_len] float32.
    """
    check_shape("values", values, "kv_heads prompt_len value_dim", {})
    kv_heads, prompt_len, value_dim = values.shape
    query_heads = output_weight.shape[1] // value_dim
    group_size = query_heads // kv_heads
    per_head = output_weight.view(-1, query_heads, value_dim)
    norms = torch.empty(query_heads, prompt_len, dtype=torch.float32, device=values.device)
    for head in range(query_heads):
        weight = per_head[:, head].T.to(values.dtype)
        for start in range(0, prompt_len, _BLOCK):
            block = values[head // group_size, start : start + _BLOCK]
            norms[head, start : start + _BLOCK] = torch.linalg.vector_norm(
                block @ weight, ord=1, dim=-1, dtype=torch.float32
            )
    return norms
