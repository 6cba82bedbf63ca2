"""How far eviction moves outputs: head L1 (isolated), hidden L1 (cascaded), KL, other metrics."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ckv_core.runtime.lazy_torch import check_shape


def head_l1(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    output_weight: Tensor,
    keep_masks: Sequence[Tensor],
) -> Tensor:
    """Isolated output perturbation ||(A - A')V W_O||_1 of every head (CriticalKV, eq. 5-6).

    A is the full run's attention of one decoding query; A' is A on the kept entries,
    renormalised. Query, keys and values are the full run's for every variant.

    Args:
        query: [query_heads, head_dim], after RoPE.
        keys: [kv_heads, entries, head_dim], all entries that the query sees, its own included.
        values: [kv_heads, entries, value_dim].
        scaling: factor of the logits.
        output_weight: [hidden, query_heads * value_dim], the weight of o_proj.
        keep_masks: per variant [kv_heads, entries] bool.

    Returns:
        [variants, query_heads] float32.
    """
    kv_heads, _, value_dim = values.shape
    query_heads = query.shape[0]
    attention = log_attention(query, keys, scaling).view(kv_heads, -1, keys.shape[1])
    # A head moves by sum_i (A_i - A'_i) V_i: one product per variant, no [entries, hidden] tensor.
    weight = output_weight.float().view(-1, query_heads, value_dim)
    result = []
    for mask in keep_masks:
        projected = torch.einsum("hv,dhv->hd", moved_heads(attention, values, mask), weight)
        result.append(projected.abs().sum(-1))
    return torch.stack(result) if result else query.new_empty(0, query_heads, dtype=torch.float32)


def log_attention(query: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Logarithm of one decoding query's attention, which has no smallest number to fall below.

    Of [query_heads, head_dim] over keys [kv_heads, entries, head_dim], both after RoPE, to
    [query_heads, entries] float32.
    """
    check_shape("query", query, "query_heads head_dim", {})
    grouped = query.float().view(keys.shape[0], -1, query.shape[1])
    return ((grouped @ keys.float().transpose(1, 2)) * scaling).log_softmax(-1).flatten(0, 1)


def moved_heads(log_attention: Tensor, values: Tensor, keep_mask: Tensor) -> Tensor:
    """How eviction moves each head's output before W_O: sum_i (A_i - A'_i) V_i.

    A' is the softmax over the kept entries, defined however little attention they have.

    Args:
        log_attention: [kv_heads, group_size, entries] float32.
        values: [kv_heads, entries, value_dim].
        keep_mask: [kv_heads, entries] bool, no row empty.

    Returns:
        [query_heads, value_dim] float32.
    """
    kept = log_attention.masked_fill(~keep_mask[:, None], -torch.inf).softmax(-1)
    difference = log_attention.exp() - kept
    return (difference @ values.float()).flatten(0, 1)


def hidden_l1(hidden: Tensor, reference: Tensor) -> Tensor:
    """Cascaded L1 distance of residual streams [rows, hidden_size] from the full run's: [rows]."""
    return (hidden.float() - reference.float()).abs().sum(-1)


def kl_divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """KL(reference || row) of next-token distributions in nats, [rows, ...] float32, >= 0.

    Of logits [rows, ..., vocabulary] and the full run's.
    """
    log_reference = reference.float().log_softmax(-1)
    probabilities = log_reference.exp()
    # One row at a time and in place: a vocabulary is wide.
    negatives = [
        row.float().log_softmax(-1).sub_(log_reference).mul_(probabilities).sum(-1)
        for row in logits
    ]
    return (0.0 - torch.stack(negatives)).clamp_min_(0.0)  # the negative of 0.0 is -0.0


METRICS = ("l1", "l2", "cosine")


def distances(reference: Tensor, moved: Tensor) -> dict[str, Tensor]:
    """How far vectors lie from the full run's, [...] per name in METRICS.

    Cosine distance 1 - cos(a, b) is computed as half the squared distance of the unit vectors,
    which loses no digits where the vectors almost agree.

    Args:
        reference: [..., dim], the full run's vectors.
        moved: [..., dim], reference minus the evicted run's vectors.
    """
    units = torch.nn.functional.normalize(reference, dim=-1)
    other = torch.nn.functional.normalize(reference - moved, dim=-1)
    return {
        "l1": moved.abs().sum(-1),
        "l2": torch.linalg.vector_norm(moved, dim=-1),
        "cosine": (units - other).square().sum(-1) / 2,
    }


def head_weights(output_weight: Tensor, query_heads: int) -> Tensor:
    """W_O, the weight of o_proj, cut by heads: [query_heads, value_dim, hidden] float32."""
    return output_weight.float().T.reshape(query_heads, -1, output_weight.shape[0]).contiguous()


def project_heads(heads: Tensor, weights: Tensor) -> Tensor:
    """Heads [variants, query_heads, value_dim], each through its own slice of W_O, before a sum."""
    return (heads.float().transpose(0, 1) @ weights).transpose(0, 1)
