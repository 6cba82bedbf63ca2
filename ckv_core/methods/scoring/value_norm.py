"""How large an entry's contribution to the output can be: the norm of V W_O."""

import torch
from torch import Tensor

from ckv_core.runtime.lazy_torch import check_shape


def value_norm(values: Tensor, output_weight: Tensor, order: int = 1) -> Tensor:
    """Norm of each value row through its query head's slice of W_O (L1: CriticalKV, eq. 8).

    Computed in blocks of positions: the [query_heads, prompt_len, hidden] product never exists.

    Args:
        values: [kv_heads, prompt_len, value_dim].
        output_weight: [hidden, query_heads * value_dim], the weight of o_proj.
        order: 1 for L1, 2 for L2.

    Returns:
        [query_heads, prompt_len] float32.
    """
    check_shape("values", values, "kv_heads prompt_len value_dim", {})
    kv_heads, prompt_len, value_dim = values.shape
    hidden, width = output_weight.shape
    group_size = width // value_dim // kv_heads
    # [kv_heads, value_dim, group_size * hidden]: one product for all query heads of a KV head.
    weight = output_weight.view(hidden, kv_heads, group_size, value_dim).permute(1, 3, 2, 0)
    weight = weight.flatten(2).to(values.dtype)
    norms = torch.empty(kv_heads, prompt_len, group_size, dtype=torch.float32, device=values.device)
    positions = max(1, block_rows(on_cuda=values.is_cuda) // group_size)
    for head in range(kv_heads):
        for start in range(0, prompt_len, positions):
            block = values[head, start : start + positions] @ weight[head]
            norms[head, start : start + positions] = torch.linalg.vector_norm(
                block.view(-1, group_size, hidden), ord=order, dim=-1, dtype=torch.float32
            )
    return norms.transpose(1, 2).flatten(0, 1)


def block_rows(*, on_cuda: bool) -> int:
    """Rows of V W_O that exist at a time: few for a CPU's cache, many for a GPU's launches."""
    return 16_384 if on_cuda else 1_024
