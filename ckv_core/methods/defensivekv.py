"""DefensiveKV: keeps what any query of the window attends to, not what they attend to on average.

First a head keeps the entries that hold most of the window's attention; the worst case over window
and group ranks the others. Two errors of the authors' code, in ties and in masses, are corrected.
"""

from collections.abc import Mapping

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import ParameterValue, number
from ckv_core.methods.parts.base import (
    SINKS,
    Candidates,
    Kept,
    Parameters,
    PerEntry,
    Scorer,
    Selector,
)
from ckv_core.methods.parts.critical import Ranking
from ckv_core.methods.parts.rules import TopScores
from ckv_core.methods.parts.top_k import keep_first
from ckv_core.methods.parts.views import LayerView
from ckv_core.methods.parts.window import (
    AUTHORS_KERNEL,
    AUTHORS_WINDOW,
    Window,
    group_reduce,
    smooth,
)


class WorstCase(Window):
    """Maximum over window and query group, no less than the head's mean, times the value norm.

    Each query's attention is smoothed and scaled back to its mass; the norms of a token's values
    are shares of their sum over the KV heads.
    """

    parameters = (AUTHORS_WINDOW, AUTHORS_KERNEL, SINKS)
    work = PerEntry(window=3, query_heads=4)
    needs_norms = True

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        window = int(parameters["window"])
        group_size = view.query_heads // view.kv_heads
        entries = view.keys.shape[1] - window
        worst = view.value_norms().new_zeros(view.kv_heads, entries)
        for head, rows in enumerate(view.window_rows(window)):
            past = rows[:, :entries]
            smoothed = self.smooth(past, parameters)
            masses = past.sum(-1, keepdim=True), smoothed.sum(-1, keepdim=True)
            smoothed *= masses[0] / masses[1].clamp(min=torch.finfo(past.dtype).tiny)
            place = head // group_size
            worst[place] = worst[place].maximum(smoothed.amax(0))
        worst = worst.maximum(worst.mean(-1, keepdim=True))
        norms = group_reduce(view.value_norms()[:, :entries], view.kv_heads, "mean")
        return worst * norms / norms.sum(0).clamp(min=torch.finfo(norms.dtype).tiny)

    def smooth(self, evidence: Tensor, parameters: Parameters) -> Tensor:
        return smooth(evidence, int(parameters["kernel"]), "avg")

    def group(self, evidence: Tensor, kv_heads: int, parameters: Parameters) -> Tensor:
        return group_reduce(evidence, kv_heads, "max")


WORST_CASE = WorstCase()


MASS = number("mass", 0.9, (0.0, 1.0)).means(
    "DefensiveKV: share of the window's attention whose entries a head keeps in any case."
)
_ORDER = ("mass",)


class Mass(Selector):
    """First the largest attention up to a share of it all, then by the scorer's scores."""

    parameters = (MASS,)
    needs_entries = True
    work = PerEntry(kv_heads=6)

    def unfit(self, scorer: Scorer) -> str:
        return "" if scorer.needs_window else "has no observation window"

    def orders(self, parameters: Parameters) -> tuple[tuple[ParameterValue, ...], ...]:
        return (_ORDER,)

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        places = range(layers.start, layers.stop)
        counts = torch.stack([first_counts(candidates, place) for place in places])
        ranking = Ranking(by_attention(candidates)[layers], candidates.first()[layers])
        return Kept(ranking.keep(head_budgets, torch.minimum(counts, head_budgets)))

    def stage_one(
        self, candidates: Candidates, place: int, head_budgets: Tensor, arrays: Mapping[str, Tensor]
    ) -> Tensor:
        return first_mask(candidates, place)


MASS_SELECTOR = Mass()


class MassThenScores(TopScores):
    """Heads are granted what the first stage keeps; for the rest those of a layer compete."""

    parameters = (MASS,)
    reads = ("window",)

    def taken(self, candidates: Candidates, place: int) -> Tensor:
        return first_mask(candidates, place)


class MassThenScoresOfAll(MassThenScores):
    """The heads of all layers compete for the rest."""

    looks_at = "all layers"


def first_mask(candidates: Candidates, place: int) -> Tensor:
    """Mark what the first stage keeps in one layer, [kv_heads, entries] bool."""
    return keep_first(by_attention(candidates)[place], first_counts(candidates, place))


def by_attention(candidates: Candidates) -> Tensor:
    """Entries by falling window attention, [layers, kv_heads, entries] int32."""
    parameters = candidates.parameters
    heads = candidates.kv_heads
    return candidates.by(_ORDER, lambda v: _attention(v, candidates.scorer, parameters, heads))


def first_counts(candidates: Candidates, place: int) -> Tensor:
    """Entries of the first stage in one layer, [kv_heads] int64 on the CPU.

    As many as stay, with all that is protected, below the share: the next one would reach it.
    """
    view, parameters = candidates.view(place), candidates.parameters
    attention = _attention(view, candidates.scorer, parameters, candidates.kv_heads)
    mass = attention[:, candidates.columns].double()
    falling = mass.gather(-1, by_attention(candidates)[place].to(mass.device).long())
    held = 1 - mass.sum(-1, keepdim=True) + falling.cumsum(-1)
    counts = (held < float(parameters["mass"])).sum(-1)
    return counts.clamp(max=candidates.spare).cpu()


def _attention(view: LayerView, scorer: Scorer, parameters: Parameters, kv_heads: int) -> Tensor:
    """Mean over window and query group, not smoothed, [kv_heads, entries - window]."""
    attention = view.window_attention(scorer.queries(parameters))
    return attention.view(kv_heads, -1, attention.shape[-1]).mean(1)


register(
    name="defensivekv",
    label="DefensiveKV",
    summary="Keeps what holds most of a head's attention; the worst case ranks the others.",
    source="Feng et al. 2025, arXiv:2510.13334",
    scorer=WORST_CASE,
    budget_rule=MassThenScores(),
    selector=MASS_SELECTOR,
)
register(
    name="layer_defensivekv",
    label="LayerDefensiveKV",
    summary="DefensiveKV's scores and first stage; the heads of all layers share one budget.",
    source="Feng et al. 2025, arXiv:2510.13334",
    scorer=WORST_CASE,
    budget_rule=MassThenScoresOfAll(),
    selector=MASS_SELECTOR,
)
