"""Oracles: what a head could keep at best if the decoding query were known."""

import torch
from torch import Tensor

_BLOCK_SHARE = 32  # each round of the greedy oracle drops 1/32 of what it may still drop
_CANDIDATES = 1024  # evaluated at a time: bounds the [candidates, hidden] product


def oracle_mask(score: Tensor, protected: Tensor, counts: Tensor) -> Tensor:
    """Keep the protected entries and the best of the others; ties go to the earlier entry.

    Args:
        score: [kv_heads, entries].
        protected: [entries] bool, kept in any case.
        counts: [kv_heads] int64 of True in each row of the result, protected ones included.
    """
    order = score.masked_fill(protected, torch.inf).argsort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(score.shape[-1], device=score.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, ranks) < counts[:, None]


def greedy_mask(
    attention: Tensor,
    values: Tensor,
    output_weight: Tensor,
    protected: Tensor,
    candidates: Tensor,
    count: int,
) -> Tensor:
    """What a greedy search for the smallest head L1 keeps in one KV head.

    From the candidates kept, each round computes for every entry that may go the sum over the
    query group of the true head L1 without it, and drops the 1/32 of them (rounded up) with the
    smallest; ties drop the later one.

    Args:
        attention: [group_size, entries] of the KV head's query heads, rows sum to 1.
        values: [entries, value_dim].
        output_weight: [group_size, value_dim, hidden], these heads' slices of W_O.
        protected: [entries] bool, never dropped.
        candidates: [entries] bool, the set to begin with; holds the protected ones.
        count: entries to keep, the protected ones included.

    Returns:
        [entries] bool with `count` True.
    """
    # Sums that nearly cancel: in float32 the rounding of a CPU's kernels would choose.
    attention, values = attention.double(), values.double()
    attention = attention / attention.sum(-1, keepdim=True)
    mask = candidates.clone()
    remaining = (candidates & ~protected).nonzero()[:, 0]
    most = count - int(protected.sum())  # read once: each round would wait for the device
    target = attention @ values
    kept = attention * candidates
    kept_sum, kept_mass = kept @ values, kept.sum(-1)
    while (excess := len(remaining) - most) > 0 and len(remaining):
        losses = torch.cat(
            [
                _losses(
                    attention[:, part], values[part], output_weight, target, kept_sum, kept_mass
                )
                for part in torch.split(remaining, _CANDIDATES)
            ]
        )
        block = min(-(-len(remaining) // _BLOCK_SHARE), excess)
        order = losses.argsort(descending=True, stable=True)
        dropped = remaining[order[-block:]]
        mask[dropped] = False
        remaining = remaining[order[:-block]].sort().values
        kept_sum -= attention[:, dropped] @ values[dropped]
        kept_mass -= attention[:, dropped].sum(-1)
    return mask


def _losses(
    attention: Tensor,
    values: Tensor,
    output_weight: Tensor,
    target: Tensor,
    kept_sum: Tensor,
    kept_mass: Tensor,
) -> Tensor:
    """Head L1 of the group without each candidate, [candidates]."""
    tiny = torch.finfo(attention.dtype).tiny
    without = kept_sum[:, None] - attention[..., None] * values
    mass = (kept_mass[:, None] - attention).clamp_min(tiny)
    moved = target[:, None] - without / mass[..., None]
    return (moved.to(output_weight.dtype) @ output_weight).abs().sum(-1).sum(0)
