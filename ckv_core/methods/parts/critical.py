"""Perturbation-constrained selection: Algorithm 1 of CriticalKV (arXiv:2502.03805).

Symbols of the paper: A attention_score, ||V W_O||_1 value norm, b head_budgets,
alpha first_stage_ratio. As its Algorithm 2 prints it, stage 1 ranks by the pooled score and
stage 2 by the raw attention times the norm; which is which is decided by the scores given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import Parameter, ParameterValue, choice, number
from ckv_core.methods.parts.base import Candidates, Kept, Parameters, Scorer, Selector
from ckv_core.methods.parts.rules import safeguarded
from ckv_core.methods.parts.top_k import keep_first
from ckv_core.methods.parts.views import LayerView

# Two readings of one paper, by the parameter stage2; answers differ between them.
READINGS: dict[str, str] = {"raw": "paper", "pooled": "code"}

ALPHA = number("alpha", 0.25, (0.0, 1.0), decimals=6, kvpress=0.5).means(
    "CriticalKV: share of each head's budget that stage 1 gives to attention alone; "
    "+critical_auto finds it per KV head."
)
STAGE_2 = choice("stage2", tuple(READINGS), default="raw", kvpress="pooled").means(
    "CriticalKV stage 2 uses the raw window attention (paper) or the smoothed score (kvpress)."
)
STAGE_1 = choice("stage1_counts_window", ("off", "on"), kvpress="on").means(
    "CriticalKV: whether stage 1's share counts entries that always stay: window, sinks, and the "
    "floor of AdaKV's safeguard (kvpress)."
)
NORM = choice("norm", ("on", "off")).means(
    "CriticalKV stage 2 multiplies by the value norm; off is a control without it."
)
PRODUCT = choice("product", ("head", "group"), kvpress="group").means(
    "Attention times value norm per query head, then combined (head); or the product "
    "of the two group values (group, kvpress)."
)
EPSILON = number("epsilon", 0.0, (0.0, 1.0), kvpress=1e-4).means(
    "Added to the attention before the product in stage 2 (kvpress: 1e-4)."
)
_RANKING = (STAGE_2, NORM, PRODUCT, EPSILON)  # alpha moves the border of the stages, not an order


class TwoStages(Selector):
    """Both forms of CriticalKV share this: the scores of stage 2."""

    label = "CriticalKV"
    parameters: ClassVar[tuple[Parameter, ...]] = _RANKING
    needs_norms = True

    def unfit(self, scorer: Scorer) -> str:
        return "" if scorer.non_negative else "has no attention score"

    def orders(self, parameters: Parameters) -> tuple[tuple[ParameterValue, ...], ...]:
        return (("second", *(parameters[parameter.name] for parameter in _RANKING)),)

    def ranking(self, candidates: Candidates, layers: slice) -> Ranking:
        """Both orders of some layers."""
        scorer, parameters = candidates.scorer, candidates.parameters
        (key,) = self.orders(parameters)
        second = candidates.by(key, lambda view: second_score(scorer, view, parameters))
        return Ranking(candidates.first()[layers], second[layers])


class Critical(TwoStages):
    """One alpha for all heads."""

    parameters = (ALPHA, STAGE_1, *_RANKING)
    offers = tuple(f"stage2={reading}" for reading in READINGS)

    def reading_of(self, parameters: Mapping[str, object]) -> str:
        return READINGS.get(str(parameters.get("stage2")), "")

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        quotas = first_quotas(candidates, head_budgets)
        return Kept(self.ranking(candidates, layers).keep(head_budgets, quotas))

    def stage_one(
        self, candidates: Candidates, place: int, head_budgets: Tensor, arrays: Mapping[str, Tensor]
    ) -> Tensor:
        return keep_first(candidates.first()[place], first_quotas(candidates, head_budgets))


CRITICAL = Critical()


def second_score(scorer: Scorer, view: LayerView, parameters: Parameters) -> Tensor:
    """Attention times value norm of one layer, [kv_heads, entries] float32."""
    if parameters["stage2"] == "pooled" and parameters["product"] == "group":
        return _of_groups(scorer.scores(view, parameters), view, parameters)
    evidence = scorer.evidence(view, parameters)
    if parameters["stage2"] == "pooled":
        evidence = scorer.smooth(evidence, parameters)
    source = evidence + float(parameters["epsilon"])
    if parameters["norm"] == "off":
        return scorer.group(source, view.kv_heads, parameters)
    norms = view.value_norms()[:, : source.shape[-1]]
    if parameters["product"] == "head":
        return scorer.group(source * norms, view.kv_heads, parameters)
    grouped = scorer.group(evidence, view.kv_heads, parameters)
    return _of_groups(grouped, view, parameters)


def _of_groups(scores: Tensor, view: LayerView, parameters: Parameters) -> Tensor:
    """The product of two values per KV head, as kvpress has it."""
    source = scores + float(parameters["epsilon"])
    if parameters["norm"] == "off":
        return source
    norms = view.value_norms()[:, : source.shape[-1]]
    return source * norms.view(view.kv_heads, -1, norms.shape[-1]).mean(1)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Entries sorted by both scores, once for every budget and alpha."""

    first: Tensor  # [..., kv_heads, evictable] int32, entries by falling attention score
    second: Tensor  # the same by falling stage-2 score

    def keep(self, head_budgets: Tensor, quotas: Tensor) -> Tensor:
        """Give each head's quota to A, the rest of its budget to A * ||V W_O||_1.

        Args:
            head_budgets: [..., kv_heads] int64, entries, each from 0 to evictable.
            quotas: [..., kv_heads] int64, entries of stage 1, each from 0 to the head's budget.

        Returns:
            [..., kv_heads, evictable] bool; a head has its budget of True.
        """
        kept = keep_first(self.first, quotas)
        # Stage 2 stays within the first `budget` entries of its order: stage 1 took no more
        # than the quota of them, so the rest of the budget is left among them.
        best = self.second[..., : int(head_budgets.max())].long()
        taken = kept.gather(-1, best)
        place = (~taken).cumsum(-1)
        spare = (head_budgets - quotas)[..., None].to(place.device)
        return kept.scatter_(-1, best, taken | (place <= spare))


def first_quotas(candidates: Candidates, head_budgets: Tensor) -> Tensor:
    """Entries of stage 1 beyond the protected ones, [..., kv_heads] int64 as the budgets."""
    alpha, protected = float(candidates.parameters["alpha"]), candidates.protected
    if candidates.parameters["stage1_counts_window"] == "off":
        return first_stage(head_budgets, alpha)
    beyond = first_stage(head_budgets + protected, alpha) - protected
    return beyond.clamp(min=safeguarded(candidates)).minimum(head_budgets)


def first_stage(head_budgets: Tensor, first_stage_ratio: float) -> Tensor:
    """Floor of alpha * b per head, exact for the decimal alpha that the user wrote.

    Of [..., kv_heads] int64 up to 2**43 each. ConfigError where alpha has over 6 decimals: more
    would not fit into int64.
    """
    alpha = Fraction(str(first_stage_ratio))
    if alpha.denominator > 10**6:
        raise ConfigError(f"alpha takes at most 6 decimals, got {first_stage_ratio!r}.")
    return head_budgets * alpha.numerator // alpha.denominator


ALPHA_GRID: tuple[float, ...] = tuple(step / 20 for step in range(21))


class CriticalAuto(TwoStages):
    """Ours: CriticalKV's two stages with an alpha of its own for every KV head.

    The alpha is chosen from a grid by the bound of the set that would be kept, with the observation
    window's attention in the place of the true one. Symbols: N kept, A window attention of one
    query head over all prompt entries, v value norms, K = sum N A v, C = sum A v,
    sigma_N = sum N A.

    Why theta (theorem 2) and not theta-hat (theorem 3). Both bound the head L1 of one and the same
    set. Theta looks at the set alone; theta-hat also at how the set was split into stages, and
    theta <= theta-hat always, since sigma <= sigma_N. Theta-hat is made to choose stage 2 with
    stage 1 fixed. Across alphas stage 1 is what changes, so theta-hat would favour a large alpha
    merely because its own slack shrinks there. The smallest theta of the grid is a bound at most as
    large as any theta-hat of the grid.

    What happens at sigma_N <= 0.5. Theta = C + (1/sigma_N - 2) K is still a bound, but its factor
    has changed sign: it would ask for entries of small norm. With K <= M sigma_N, M the largest
    norm, it follows that theta <= C + M (1 - 2 sigma_N): also a bound, equal to theta at
    sigma_N = 0.5, and it asks only for more attention. So where the theory does not support the
    norm, attention decides.

    What to expect. Stage 2 as the paper prints it ranks by the very A v of which theta is made, so
    alpha 0 is mostly the best by this measure: in 94 % of the KV heads over 40 texts of the default
    model (docs/findings/alpha.csv). It takes the window at its word; what stage 1 is for,
    attention that the window misjudges, no bound from the same window can see.

    One kept set serves all query heads of a group, so their bounds are summed.
    """

    reading = "auto alpha"
    needs_full_window = True
    needs_entries = True
    one_layer = True
    tries = len(ALPHA_GRID)

    def unfit(self, scorer: Scorer) -> str:
        return super().unfit(scorer) or ("" if scorer.needs_window else "has no observation window")

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        place = layers.start
        view = candidates.view(place)
        attention, norms = view.scaling.completed(
            view.full_window_attention(candidates.scorer.queries(candidates.parameters)),
            view.value_norms(),
        )
        both = self.ranking(candidates, layers)
        ranking = Ranking(*(order[0].to(attention.device) for order in (both.first, both.second)))
        columns = candidates.columns
        mask, alphas = critical_auto(ranking, head_budgets[0], attention, norms, columns)
        return Kept(mask[None], {"head_alpha": alphas[None]})

    def stage_one(
        self, candidates: Candidates, place: int, head_budgets: Tensor, arrays: Mapping[str, Tensor]
    ) -> Tensor:
        alphas = arrays["head_alpha"][place].to(head_budgets.device)
        # 0.05 steps, rounded because float32 shifts them
        quotas = head_budgets * (alphas * 20).round().long() // 20
        return keep_first(candidates.first()[place], quotas)


CRITICAL_AUTO = CriticalAuto()


def head_bound(attention: Tensor, norms: Tensor, keep_masks: Tensor) -> Tensor:
    """Bound of each KV head's perturbation, summed over its query heads: [sets, kv_heads] float32.

    Of attention A [query_heads, entries], whose rows sum to 1, of value norms shaped alike, and of
    masks [sets, kv_heads, entries] bool, none empty of attention.
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

    Of the ranking of one layer's evictable entries, which are at `columns`; all others count as
    kept. Attention (the window's own columns too) and norms are [query_heads, prompt_len]. Gives
    a mask [kv_heads, evictable] bool, and the alphas, [kv_heads] float32.
    """
    quotas = [first_stage(head_budgets, alpha) for alpha in ALPHA_GRID]
    masks = torch.stack([ranking.keep(head_budgets, quota) for quota in quotas])
    everything = masks.new_ones(*masks.shape[:2], attention.shape[-1])
    everything[..., columns] = masks
    best = head_bound(attention, norms, everything).argmin(0)
    heads = torch.arange(len(best), device=best.device)
    return masks[best, heads], torch.tensor(ALPHA_GRID, device=best.device)[best]
