"""Budget rules: equal ones, AdaKV's, by the highest scores; shares become exact whole numbers."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, Literal

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.base.percent import percent
from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import choice, number
from ckv_core.methods.parts.base import BudgetRule, Candidates, Parameters, PerEntry
from ckv_core.methods.parts.views import PromptShape


class Uniform(BudgetRule):
    """The mean budget for everyone."""

    equal = True

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        return torch.full((candidates.layers, candidates.kv_heads), spare, dtype=torch.int64)


UNIFORM = Uniform()


def integer_shares(shares: Sequence[Fraction], total: int, cap: int) -> list[int]:
    """Largest-remainder rounding to whole entries that sum to `total`; ties go to the lower index.

    A share above `cap` is cut to it and the excess passed on by the same rule.

    Shares are >= 0 and sum to `total`, up to what the cap cuts; ConfigError where all of them
    cannot hold it.
    """
    if total > cap * len(shares):
        raise ConfigError(f"{total} entries do not fit into {len(shares)} shares of {cap}.")
    whole = [min(math.floor(share), cap) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda at: math.floor(shares[at]) - shares[at])
    missing = total - sum(whole)
    while missing > 0:
        for index in by_remainder:
            if missing and whole[index] < cap:
                whole[index] += 1
                missing -= 1
    return whole


SAFEGUARD = number("safeguard", 0.2, (0.0, 1.0)).means(
    "AdaKV: share of each head's budget that stays uniform."
)
SAFEGUARD_RULE = choice("safeguard_rule", ("blend", "floor"), kvpress="floor").means(
    "AdaKV: the safeguard is mixed into budgets beyond what is always kept (blend), or is a "
    "minimum of the whole (floor)."
)


class Adaptive(BudgetRule):
    """The heads of a layer compete for its budget (arXiv:2407.11550)."""

    parameters = (SAFEGUARD, SAFEGUARD_RULE)
    work = PerEntry(kv_heads=6)
    compares_heads = True
    ranks_heads = True
    looks_at = "layer"

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        safeguard = float(parameters["safeguard"])
        if parameters["safeguard_rule"] == "floor":
            least = safeguarded(candidates)
            return floored_budgets(candidates.joint(), candidates.kv_heads, spare, least)
        return adaptive_budgets(candidates.joint(), candidates.kv_heads, spare, safeguard)


ADAPTIVE = Adaptive()


def adaptive_budgets(order: Tensor, kv_heads: int, spare: int, safeguard: float) -> Tensor:
    """Head budgets beyond the protected entries (AdaKV's Algorithm 1, arXiv:2407.11550).

    c_h of a layer's top kv_heads * spare scores lie in head h; the head gets
    c_h * (1 - safeguard) + safeguard * spare, rounded by largest remainder.

    Of the `order` of each layer's entries, [layers, kv_heads * evictable] int32, one head's after
    the other's, by falling score; `safeguard` is the share that stays uniform, 0 to 1.

    Returns:
        [layers, kv_heads] int64 on the CPU, each layer summing to kv_heads * spare.
    """
    total, evictable = kv_heads * spare, order.shape[-1] // kv_heads
    heads, uniform = order[:, :total] // max(evictable, 1), Fraction(str(safeguard))
    counts = torch.stack([(heads == head).sum(-1) for head in range(kv_heads)], dim=-1)
    shares = [
        [count * (1 - uniform) + uniform * spare for count in layer] for layer in counts.tolist()
    ]
    return torch.tensor([integer_shares(layer, total, evictable) for layer in shares])


def safeguarded(candidates: Candidates) -> int:
    """Entries beyond the protected ones that every head is sure of; 0 without such a rule."""
    parameters = candidates.parameters
    if parameters.get("safeguard_rule") != "floor":
        return 0
    share = Fraction(str(parameters["safeguard"]))
    floor = math.floor((candidates.spare + candidates.protected) * share)
    floor = max(floor, 1) if share else 0
    return min(max(floor - candidates.protected, 0), candidates.spare)


def floored_budgets(order: Tensor, kv_heads: int, spare: int, least: int) -> Tensor:
    """Head budgets as `adaptive_budgets`, shared out the way kvpress does.

    The first `least` entries of every head, 0 to `spare`, are granted; all others of the layer
    compete.
    """
    budgets = []
    for heads in order // max(order.shape[-1] // kv_heads, 1):
        granted = torch.zeros_like(heads, dtype=torch.bool)
        for head in range(kv_heads):
            own = heads == head
            granted |= own & (own.cumsum(-1) <= least)
        competing = heads[~granted][: kv_heads * (spare - least)]
        budgets.append(least + torch.bincount(competing, minlength=kv_heads).cpu())
    return torch.stack(budgets)


class TopScores(BudgetRule):
    """All heads of a layer compete."""

    ranks_heads = True
    looks_at: ClassVar[Literal["nothing", "layer", "all layers"]] = "layer"

    def taken(self, candidates: Candidates, place: int) -> Tensor | None:
        """Mark what heads keep in any case, [kv_heads, entries] bool; only the rest competes."""
        return None

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        if self.looks_at == "layer":
            layers = range(candidates.layers)
            return torch.cat([self._counts(candidates, [place], spare) for place in layers])
        return self._counts(candidates, list(range(candidates.layers)), spare)

    def _counts(self, candidates: Candidates, places: list[int], spare: int) -> Tensor:
        """Head budgets of these layers together, [layers, kv_heads] int64 on the CPU."""
        each = [candidates.scores(place) for place in places]
        scores = torch.stack([one.to(each[0].device) for one in each])  # layers may lie apart
        taken = torch.zeros(scores.shape[:2], dtype=torch.int64)
        for row, place in enumerate(places):
            mask = self.taken(candidates, place)
            if mask is None:
                break
            scores[row].masked_fill_(mask.to(scores.device), -torch.inf)
            taken[row] = mask.sum(-1).cpu()
        left = scores.shape[0] * scores.shape[1] * spare - int(taken.sum())
        return taken + top_counts(scores.flatten(0, 1), left).view_as(taken)

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        layers = shape.layers if self.looks_at == "all layers" else 1
        return 24 * layers * shape.kv_heads * shape.prompt_len


class TopScoresOfAll(TopScores):
    """The heads of all layers compete."""

    looks_at = "all layers"


THRESHOLD = number("threshold", 0.02, (-1e9, 1e9)).means(
    "With rule=threshold: entries whose score is below it are evicted, and the budget is the most "
    "that is kept."
)


class Threshold(TopScoresOfAll):
    """Entries whose score is no less than a threshold; where too many are, the best of them.

    What is kept follows from the text, and the budget is a bound (KVzap, arXiv:2601.07891).
    """

    parameters = (THRESHOLD,)
    at_most = True

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        above = _above(candidates, parameters)
        return above.minimum(super().head_budgets(candidates, spare, parameters))

    def notes(self, candidates: Candidates, parameters: Parameters) -> tuple[str, ...]:
        alone = float(_above(candidates, parameters).double().mean()) + candidates.protected
        budget = candidates.spare + candidates.protected
        what = "so fewer are kept than requested" if alone < budget else "and the best stay"
        share = percent(alone / (candidates.entries + candidates.protected), 1)
        return (
            f"The threshold alone keeps {alone:,.1f} entries per KV head ({share} of the "
            f"prompt); the budget allows {budget:,}, {what}.",
        )


def _above(candidates: Candidates, parameters: Parameters) -> Tensor:
    """Entries of each head with no less than the threshold, [layers, kv_heads] on the CPU."""
    least, layers = float(parameters[THRESHOLD.name]), range(candidates.layers)
    return torch.stack([(candidates.scores(each) >= least).sum(-1).cpu() for each in layers])


def top_counts(scores: Tensor, total: int) -> Tensor:
    """How many of the `total` highest of [rows, entries] scores lie in each row, [rows] on the CPU.

    Ties go to the earlier row.
    """
    if not total:
        return torch.zeros(len(scores), dtype=torch.int64)
    border = scores.flatten().kthvalue(scores.numel() - total + 1).values
    above, equal = (scores > border).sum(-1).cpu(), (scores == border).sum(-1).cpu()
    before = equal.cumsum(0) - equal
    return above + (total - above.sum() - before).clamp(min=0).minimum(equal)
