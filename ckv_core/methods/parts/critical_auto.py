"""Ours: CriticalKV's two stages with an alpha of its own for every KV head.

The alpha is chosen from a grid by the bound of the set that would be kept, with the observation
window's attention in the place of the true one. Symbols: N kept, A window attention of one query
head over all prompt entries, v value norms, K = sum N A v, C = sum A v, sigma_N = sum N A.

Why theta (theorem 2 of CriticalKV, arXiv:2502.03805) and not theta-hat (theorem 3). Both bound
the head L1 of one and the same set. Theta looks at the set alone; theta-hat also at how the set
was split into stages, and theta <= theta-hat always, since sigma <= sigma_N. Theta-hat is made to
choose stage 2 with stage 1 fixed. Across alphas stage 1 is what changes, so theta-hat would favour
a large alpha merely because its own slack shrinks there. The smallest theta of the grid is a bound
at most as large as any theta-hat of the grid.

What happens at sigma_N <= 0.5. Theta = C + (1/sigma_N - 2) K is still a bound, but its factor has
changed sign: it would ask for entries of small norm. With K <= M sigma_N, M the largest norm, it
follows that theta <= C + M (1 - 2 sigma_N): also a bound, equal to theta at sigma_N = 0.5, and it
asks only for more attention. So where the theory does not support the norm, attention decides.

What to expect. Stage 2 as the paper prints it ranks by the very A v of which theta is made, so
alpha 0 is mostly the best by this measure: in 94 % of the KV heads over 40 texts of the default
model (docs/findings.md). It takes the window at its word; what stage 1 is for, attention that the
window misjudges, no bound from the same window can see.

One kept set serves all query heads of a group, so their bounds are summed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckv_core.methods.parts.base import Candidates, Kept, Scorer
from ckv_core.methods.parts.critical import Ranking, TwoStages, first_stage
from ckv_core.methods.parts.top_k import keep_first
from ckv_core.runtime.lazy_torch import Tensor, torch

ALPHA_GRID: tuple[float, ...] = tuple(step / 20 for step in range(21))


class CriticalAuto(TwoStages):
    """CriticalKV's two stages, alpha chosen per KV head."""

    name = "critical_auto"
    label = "CriticalKV (auto-alpha)"
    needs_full_window = True
    needs_entries = True
    one_layer = True
    tries = len(ALPHA_GRID)

    def unfit(self, scorer: Scorer) -> str:
        return super().unfit(scorer) or ("" if scorer.needs_window else "has no observation window")

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        place = layers.start
        view = candidates.view(place)
        attention = view.full_window_attention(candidates.scorer.queries(candidates.parameters))
        both = self.ranking(candidates, layers)
        ranking = Ranking(*(order[0].to(attention.device) for order in (both.first, both.second)))
        columns = candidates.columns
        mask, alphas = critical_auto(
            ranking, head_budgets[0], attention, view.value_norms(), columns
        )
        return Kept(mask[None], {"head_alpha": alphas[None]})

    def stage_one(
        self, candidates: Candidates, place: int, head_budgets: Tensor, arrays: Mapping[str, Tensor]
    ) -> Tensor:
        alphas = arrays["head_alpha"][place].to(head_budgets.device)
        # 0.05 steps, told apart from what float32 makes of them
        quotas = head_budgets * (alphas * 20).round().long() // 20
        return keep_first(candidates.first()[place], quotas)


CRITICAL_AUTO = CriticalAuto()


def head_bound(attention: Tensor, norms: Tensor, keep_masks: Tensor) -> Tensor:
    """Bound of each KV head's perturbation, summed over its query heads.

    Args:
        attention: [query_heads, entries] A, each row sums to 1.
        norms: [query_heads, entries] value norms.
        keep_masks: [sets, kv_heads, entries] bool, no row empty of attention.

    Returns:
        [sets, kv_heads] float32.
    """
    kv_heads = keep_masks.shape[1]
    grouped = attention.view(kv_heads, -1, attention.shape[-1])
    weighted = grouped * norms.view_as(grouped)
    kept = keep_masks.to(attention.dtype).transpose(0, 1)  # [kv_heads, sets, entries]
    sigma = kept @ grouped.transpose(1, 2)  # [kv_heads, sets, group]
    mass = kept @ weighted.transpose(1, 2)
    missed, dropped = ((1 - kept) @ part.transpose(1, 2) for part in (grouped, weighted))
    largest = norms.view_as(grouped).amax(-1)[:, None]
    # C - (2 - 1/sigma) K, written so that no digits are lost where little is dropped
    theta = dropped + missed / sigma * mass
    attention_only = dropped + mass + largest * (missed - sigma)
    return torch.where(sigma > 0.5, theta, attention_only).sum(-1).T


def critical_auto(
    ranking: Ranking,
    head_budgets: Tensor,
    attention: Tensor,
    norms: Tensor,
    columns: slice | Tensor,
) -> tuple[Tensor, Tensor]:
    """Keep what each head keeps under its own best alpha of the grid; ties to the smaller alpha.

    Args:
        ranking: order of one layer's evictable entries, [kv_heads, evictable].
        head_budgets: [kv_heads] int64, entries, each from 0 to evictable.
        attention: [query_heads, prompt_len] mean window attention, the window's own columns too.
        norms: [query_heads, prompt_len] value norms.
        columns: positions of the evictable entries; all others count as kept.

    Returns:
        keep_mask [kv_heads, evictable] bool and the alphas, [kv_heads] float32.
    """
    quotas = [first_stage(head_budgets, alpha) for alpha in ALPHA_GRID]
    masks = torch.stack([ranking.keep(head_budgets, quota) for quota in quotas])
    everything = masks.new_ones(*masks.shape[:2], attention.shape[-1])
    everything[..., columns] = masks
    best = head_bound(attention, norms, everything).argmin(0)
    heads = torch.arange(len(best), device=best.device)
    return masks[best, heads], torch.tensor(ALPHA_GRID, device=best.device)[best]
