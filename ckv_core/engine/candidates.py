"""The entries that one variant may evict, ordered by score: sorted once, kept for later runs.

Budget, alpha and budget rule do not change an order, so a run that changes them sorts nothing.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ckv_core.engine.head_tables import table_of
from ckv_core.engine.outside import checked_keep, checked_scorer
from ckv_core.engine.prefill import LayerStates, Memo, Prefill
from ckv_core.errors import EngineError
from ckv_core.methods.attention import (
    full_window_attention,
    value_norm,
    window_attention,
    window_rows,
)
from ckv_core.methods.parts.base import Kept, Parameters, Scorer, Selector
from ckv_core.methods.parts.layout import LAYOUT, page_size
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.top_k import keep_first, order
from ckv_core.methods.parts.views import LayerView, Rotary, Statistic, Table
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.rope import LayerRotary
from ckv_core.records.variants import VariantSpec


def protected_mask(spec: VariantSpec, prompt_len: int) -> Tensor:
    """Positions that a variant never evicts, [prompt_len] bool on the CPU."""
    mask = torch.zeros(prompt_len, dtype=torch.bool)
    for part in spec.always_kept(prompt_len):
        mask[part.start : part.stop] = True
    return mask


def order_keys(spec: VariantSpec) -> tuple[Hashable, ...]:
    """Equal for orders that are equal; a variant by position alone needs none that is kept."""
    scorer, rule = spec.method.scorer, spec.method.budget_rule
    if scorer is None or rule is None or scorer.by_position:
        return ()
    own = _score_key(spec, spec.params)
    kinds = [
        "first",
        *(["joint"] if rule.compares_heads else []),
        *spec.selector.orders(spec.params),
    ]
    return tuple((kind, own) for kind in kinds)


class PromptCandidates:
    """The candidates of one variant in one prompt; see `parts.base.Candidates`."""

    def __init__(self, spec: VariantSpec, prefill: Prefill, budget: int) -> None:
        self._spec = spec
        self.parameters: Parameters = {**spec.params, "budget": budget}
        self.kv_heads = prefill.loaded.info.kv_heads
        free = (~protected_mask(spec, prefill.prompt_len)).nonzero().flatten()
        first, last = int(free[0]), int(free[-1])
        self.scorer: Scorer = checked_scorer(spec, last + 1)
        # They lie together, but for a span in the middle that is protected.
        together = last - first + 1 == len(free)
        self.columns: slice | Tensor = slice(first, last + 1) if together else free
        evictable = prefill.loaded.info.evictable_layers
        self._views: list[GeneratedLayer] = [PromptLayer(prefill, layer) for layer in evictable]
        self.layers = len(evictable)
        self.entries = len(free)
        self.protected = prefill.prompt_len - self.entries
        self.spare = budget - self.protected
        self._key = _score_key(spec, self.parameters)
        self._memo, self._device = prefill.memo, prefill.device

    def view(self, place: int) -> LayerView:
        return self._views[place]

    def head_table(self, table: Table) -> Tensor:
        return torch.stack([view.head_table(table) for view in self._views], 1)

    def first(self) -> Tensor:
        if self.scorer.by_position:
            return order(self.scores(0)).expand(self.layers, -1, -1)
        return self.by("first", lambda view: self.scorer.scores(view, self.parameters))

    def joint(self) -> Tensor:
        key = ("joint", self._key)
        return self._memo.order(key, lambda: self._sort(self.scores, joint=True)).flatten(1)

    def by(self, key: Hashable, score: Callable[[LayerView], Tensor]) -> Tensor:
        def scores(place: int) -> Tensor:
            return self._evictable_part(score(self.view(place)))

        return self._memo.order((key, self._key), lambda: self._sort(scores))

    def keep(self, layers: slice, head_budgets: Tensor) -> Kept:
        """Applies the variant's selector to some layers; see `Selector.keep`."""
        return checked_keep(self._spec, self, layers, head_budgets)

    def stage_one(
        self, selector: Selector, place: int, head_budgets: Tensor, arrays: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Choose by the first stage alone in one layer; see `Selector.stage_one`."""
        return selector.stage_one(self, place, head_budgets, arrays)

    def scores(self, place: int) -> Tensor:
        return self._evictable_part(self.scorer.scores(self.view(place), self.parameters))

    def _evictable_part(self, scores: Tensor) -> Tensor:
        """[kv_heads, entries] of scores that may lack columns at the end."""
        return scores[:, self.columns]

    def _sort(self, scores: Callable[[int], Tensor], *, joint: bool = False) -> Tensor:
        """Score and sort layer by layer: only one layer's scores exist at a time."""
        shape = (self.layers, self.kv_heads, self.entries)
        orders = torch.empty(shape, dtype=torch.int32, device=self._device)
        for place in range(self.layers):
            score = scores(place)
            orders[place] = order(score.flatten() if joint else score).view(shape[1:])
        return orders


class SharedCandidates(PromptCandidates):
    """A layer counts as one KV head, whose scores are the mean of those of all its heads."""

    def __init__(self, spec: VariantSpec, prefill: Prefill, budget: int) -> None:
        super().__init__(spec, prefill, budget)
        self.kv_heads = 1

    def head_table(self, table: Table) -> Tensor:
        """A layer has the mean of its heads."""
        return super().head_table(table).mean(-1, keepdim=True)

    def _evictable_part(self, scores: Tensor) -> Tensor:
        return super()._evictable_part(scores.mean(0, keepdim=True))


class PageCandidates(SharedCandidates):
    """Whole pages in the place of entries, scored by the mean of their entries.

    Pages that hold something protected are no candidates: they are held anyway, and filled first.
    """

    def __init__(self, spec: VariantSpec, prefill: Prefill, budget: int) -> None:
        super().__init__(spec, prefill, budget)
        self._size = page_size(spec.params)
        self._key = (*self._key, "pages")
        protected = protected_mask(spec, prefill.prompt_len)
        page = torch.arange(prefill.prompt_len) // self._size
        of_entry = page[self.columns]
        free = ~torch.isin(of_entry, page[protected])
        pages = sorted(set(of_entry[free].tolist()))
        of_free = torch.searchsorted(torch.tensor(pages, dtype=torch.int64), of_entry[free])
        self._all = len(of_entry)
        self._free = free.nonzero()[:, 0].to(prefill.device)  # among the entries
        self._of_free = of_free.to(prefill.device)
        self.entries = len(pages)

    def _evictable_part(self, scores: Tensor) -> Tensor:
        """[1, pages]."""
        shared = super()._evictable_part(scores)[:, self._free.to(scores.device)]
        place = self._of_free.to(scores.device)
        totals = shared.new_zeros(1, self.entries).index_add(1, place, shared)
        sizes: Tensor = place.bincount(minlength=self.entries)
        return totals / sizes

    def keep(self, layers: slice, head_budgets: Tensor) -> Kept:
        """The selector chooses pages, which are cut where the budget of entries ends.

        Protected pages come first, then as many whole pages as the rest of the budget holds, as the
        selector chooses; what is left goes to the best other page, from its first entry on.
        """
        chosen = super().keep(layers, self._pages(head_budgets)).mask
        ranked = self.first()[layers].long()
        places = torch.arange(2, self.entries + 2, device=ranked.device).expand_as(ranked)
        turn = torch.empty_like(ranked).scatter(-1, ranked, places)
        turn = turn.masked_fill(chosen.to(turn.device), 1)
        by_turn = self._by_entry(turn, 0).argsort(dim=-1, stable=True).int()
        return Kept(keep_first(by_turn, head_budgets))

    def stage_one(
        self,
        selector: Selector,
        place: int,
        head_budgets: Tensor,
        arrays: Mapping[str, Tensor],  # noqa: ARG002 - chosen for heads
    ) -> Tensor | None:
        """Entries of the pages of its first stage and of protected ones, [1, entries] bool."""
        pages = self._pages(head_budgets)
        first = selector.stage_one(self, place, pages, {})
        return None if first is None else self._by_entry(first, fill=True)

    def _pages(self, head_budgets: Tensor) -> Tensor:
        spare = head_budgets - (self._all - len(self._free))
        return (spare.clamp(min=0) // self._size).clamp(max=self.entries)

    def _by_entry(self, of_pages: Tensor, fill: int) -> Tensor:
        """[..., entries] of [..., pages]; `fill` in pages that hold something protected."""
        of_entries = of_pages.new_full((*of_pages.shape[:-1], self._all), fill)
        of_entries[..., self._free] = of_pages[..., self._of_free]
        return of_entries


def _score_key(spec: VariantSpec, parameters: Parameters) -> tuple[Hashable, ...]:
    """Equal for equal scores of the same candidates."""
    return (spec.scorer.key(parameters), spec.passages, spec.params.get(LAYOUT.name))


class GeneratedLayer:
    """Generated entries of one layer, or all that a row holds; see `parts.views.LayerView`.

    Attention is that among these entries: the newest queries' over them.
    """

    def __init__(self, loaded: LoadedModel, layer: int, states: LayerStates) -> None:
        self.loaded, self.layer, self._queries = loaded, layer, states.queries
        self.keys, self.values, self.scaling = states.keys, states.values, states.scaling
        self.kv_heads, self.query_heads = len(states.keys), len(states.queries)
        self.positions: Tensor | None = None
        self.prompt_len = self.read = self.keys.shape[1]

    def window_queries(self, window: int) -> Tensor:
        return self._queries[:, -window:]

    def window_rows(self, window: int) -> Iterator[Tensor]:
        return window_rows(self.window_queries(window), self.keys, self.scaling)

    def window_attention(self, window: int) -> Tensor:
        states = (self.window_queries(window), self.keys, self.scaling)
        return self.statistic(f"window {window}", lambda: window_attention(*states))

    def full_window_attention(self, window: int) -> Tensor:
        states = (self.window_queries(window), self.keys, self.scaling)
        return self.statistic(f"full window {window}", lambda: full_window_attention(*states))

    def value_norms(self, order: int = 1) -> Tensor:
        projection = cast(nn.Linear, self.loaded.attentions[self.layer].o_proj)
        return self.statistic(
            f"norms {order}", lambda: value_norm(self.values, projection.weight, order)
        )

    def statistic(self, kind: str, compute: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002 - no memo
        """Compute it each time, since the entries are new ones."""
        return compute()

    def observed(self, gathered: Statistic) -> Tensor:
        raise EngineError(f"Nothing observes {gathered!r} while generating.")

    def rotary(self) -> Rotary:
        return LayerRotary(self.loaded, self.layer)

    def head_table(self, table: Table) -> Tensor:
        return table_of(self.loaded.info, table)[:, self.layer]


class PromptLayer(GeneratedLayer):
    """One layer of a prompt; its statistics are computed once for all variants."""

    def __init__(self, prefill: Prefill, layer: int) -> None:
        super().__init__(prefill.loaded, layer, prefill.layers[layer])
        self._prefill, self.read = prefill, prefill.prompt_len

    def statistic(self, kind: str, compute: Callable[[], Tensor]) -> Tensor:
        """A tensor of this kind, as large in every layer; kept for all variants."""
        evictable = self.loaded.info.evictable_layers
        place = evictable.index(self.layer)
        return self._prefill.memo.statistic(kind, place, len(evictable), compute)

    def observed(self, gathered: Statistic) -> Tensor:
        return self._prefill.observed[gathered][self.layer]


class GeneratedCandidates(PromptCandidates):
    """Generated entries of one layer but for the window; every head keeps the same number."""

    layers = 1

    def __init__(self, spec: VariantSpec, layer: GeneratedLayer, spare: int) -> None:
        self._spec, self._views, self.parameters = spec, [layer], spec.params
        self._memo, self._key, self._device = Memo(), (), layer.keys.device
        self.kv_heads, self.spare, self.protected = layer.kv_heads, spare, spec.queries
        self.entries = layer.keys.shape[1] - spec.queries
        self.scorer = checked_scorer(spec, self.entries)
        self.columns = slice(0, self.entries)


class BlockCandidates(PromptCandidates):
    """The entries of one layer at the end of a block, without the protected ones.

    Attributes:
        columns: of the first head; all have the same but between passages that a request protects.
    """

    layers = 1

    def __init__(
        self, spec: VariantSpec, layer: GeneratedLayer, protected: Tensor, count: int
    ) -> None:
        """`protected` is [kv_heads, entries] bool, as many in each; `count` is kept of each."""
        self._spec, self._views, self._protected = spec, [layer], protected
        self.parameters = {**spec.params, "budget": count}
        self._memo, self._key, self._device = Memo(), (), layer.keys.device
        self.kv_heads = layer.kv_heads
        self._free = (~protected).nonzero()[:, 1].view(self.kv_heads, -1)
        self.columns, self.entries = self._free[0], self._free.shape[1]
        self.protected = protected.shape[1] - self.entries
        self.spare = count - self.protected
        self.scorer = checked_scorer(spec, protected.shape[1])

    def _evictable_part(self, scores: Tensor) -> Tensor:
        return scores.gather(1, self._free)

    def kept(self) -> Tensor:
        """Returns [kv_heads, entries] bool."""
        budgets = torch.full((1, self.kv_heads), self.spare)
        chosen = self.keep(slice(0, 1), budgets).mask[0]
        return self._protected.scatter(1, self._free, chosen.to(self._device))


@dataclass(frozen=True, slots=True)
class Chooser:
    """Chooses among a row's entries by its variant's scorer and selector."""

    spec: VariantSpec
    loaded: LoadedModel

    def keep(
        self,
        layer: int,
        states: tuple[Tensor, Tensor],
        queries: Tensor,
        scaling: Scaling,
        count: int,
        read: int,
    ) -> Tensor:
        """The newest entries, as many as the window has, and the best of the others.

        Of keys and values [kv_heads, entries, dim] and the newest queries
        [query_heads, window, head_dim]; `count` are True in each row of [kv_heads, entries], after
        so many tokens were read.
        """
        view = GeneratedLayer(self.loaded, layer, LayerStates(*states, queries, scaling))
        view.read = read
        candidates = GeneratedCandidates(self.spec, view, count - self.spec.queries)
        budgets = torch.full((1, view.kv_heads), candidates.spare)
        kept = torch.ones_like(view.keys[..., 0], dtype=torch.bool)
        kept[:, candidates.columns] = candidates.keep(slice(0, 1), budgets).mask[0]
        return kept
