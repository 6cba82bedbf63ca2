"""CriticalKV's bounds of the head perturbation: sigma, C, theta and its relaxed forms.

Symbols of the paper (section 3, appendix F): A attention of the decoding query in the full
run, v_i the L1 norm of V_i W_O, N' the entries of stage 1, N'' those of stage 2, N = N' + N''.
"""

import torch
from torch import Tensor

from ckv_core.runtime.lazy_torch import check_shape


def bounds(attention: Tensor, norms: Tensor, kept: Tensor, stage_one: Tensor) -> dict[str, Tensor]:
    """Masses and bounds of every query head, in the type of `attention`.

    With D = sum of A v over the dropped entries and S = the same over the kept ones, theta =
    C - (2 - 1/sigma_N) S is computed as D + (1 - sigma_N)/sigma_N S (the paper's eq. 11), and
    theta-hat and its relaxed form likewise, so that no digits are lost where little is dropped.

    L1 <= theta always. theta <= theta_hat always. theta_hat <= theta_relaxed where sigma >= 0.5;
    below that the factor 2 - 1/sigma is negative and the last step turns around.

    Args:
        attention: [query_heads, entries], rows sum to 1.
        norms: [query_heads, entries].
        kept: [kv_heads, entries] bool, N.
        stage_one: [kv_heads, entries] bool, N'; part of N.

    Returns:
        sigma_stage1, sigma_kept, value_mass, theta, theta_hat and theta_relaxed, each
        [query_heads]; theta is NaN where the kept mass underflows.
    """
    check_shape("attention", attention, "query_heads entries", {})
    kv_heads = kept.shape[0]
    masks = torch.stack([kept, ~kept, stage_one, ~stage_one, kept & ~stage_one], dim=-1)
    weighted = attention * norms
    least = norms.amin(-1, keepdim=True)
    parts = torch.stack([attention, weighted, attention * (norms - least)])
    grouped = parts.view(3, kv_heads, -1, attention.shape[1])
    sums = grouped @ masks.to(attention.dtype)
    mass, valued, above = sums.flatten(1, 2)
    tiny = torch.finfo(attention.dtype).tiny
    sigma_kept, dropped, sigma, outside, _ = mass.unbind(-1)
    kept_value, dropped_value = valued[:, 0], valued[:, 1]
    theta = dropped_value + dropped / sigma_kept.clamp_min(tiny) * kept_value
    # Attention too small for its type says nothing of what the kept entries would be weighted by.
    theta = theta.masked_fill(sigma_kept < tiny, torch.nan)
    theta_hat = dropped_value + outside / sigma.clamp_min(tiny) * kept_value
    slack = (sigma - outside) / sigma.clamp_min(tiny) * above[:, 4]
    return {
        "sigma_stage1": sigma,
        "sigma_kept": sigma_kept,
        "value_mass": weighted.sum(-1),
        "theta": theta,
        "theta_hat": theta_hat,
        "theta_relaxed": theta_hat + slack,
    }


def sigma_oracle(attention: Tensor, counts: Tensor) -> Tensor:
    """Largest attention mass that so many entries can hold, [query_heads].

    Of attention [query_heads, entries] and entries in N' per KV head, [kv_heads] int64 from 1 on.
    """
    mass = attention.sort(dim=-1, descending=True).values.cumsum(-1)
    group_size = attention.shape[0] // counts.shape[0]
    last = counts.repeat_interleave(group_size)[:, None] - 1
    return mass.gather(-1, last)[:, 0]
