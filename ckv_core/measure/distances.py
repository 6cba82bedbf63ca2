"""Distances of outputs under each metric: L1, L2 and cosine distance."""

import torch
from torch import Tensor

METRICS = ("l1", "l2", "cosine")


def distances(reference: Tensor, moved: Tensor) -> dict[str, Tensor]:
    """How far vectors lie from the full run's.

    Cosine distance 1 - cos(a, b) is computed as half the squared distance of the unit vectors,
    which loses no digits where the vectors almost agree.

    Args:
        reference: [..., dim], the full run's vectors.
        moved: [..., dim], reference minus the evicted run's vectors.

    Returns:
        [...] per name in METRICS.
    """
    units = torch.nn.functional.normalize(reference, dim=-1)
    other = torch.nn.functional.normalize(reference - moved, dim=-1)
    return {
        "l1": moved.abs().sum(-1),
        "l2": torch.linalg.vector_norm(moved, dim=-1),
        "cosine": (units - other).square().sum(-1) / 2,
    }


def head_weights(output_weight: Tensor, query_heads: int) -> Tensor:
    """W_O cut into the slices of the heads.

    Args:
        output_weight: [hidden, query_heads * value_dim], the weight of o_proj.
        query_heads: number of heads.

    Returns:
        [query_heads, value_dim, hidden] float32.
    """
    return output_weight.float().T.reshape(query_heads, -1, output_weight.shape[0]).contiguous()


def project_heads(heads: Tensor, weights: Tensor) -> Tensor:
    """Each head's output through its own slice of W_O, before heads are summed.

    Args:
        heads: [variants, query_heads, value_dim].
        weights: of `head_weights`.

    Returns:
        [variants, query_heads, hidden] float32.
    """
    return (heads.float().transpose(0, 1) @ weights).transpose(0, 1)
