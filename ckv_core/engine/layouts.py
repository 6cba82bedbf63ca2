"""Candidates of a variant whose KV heads share one set, or keep whole pages: `layout=`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ckv_core.engine.candidates import PromptCandidates, protected_mask
from ckv_core.engine.prefill import Prefill
from ckv_core.methods.parts.base import Kept, Selector
from ckv_core.methods.parts.layout import is_shared, page_size
from ckv_core.methods.parts.top_k import keep_first
from ckv_core.request.variants import VariantSpec


class SharedCandidates(PromptCandidates):
    """As if a layer had one KV head, whose scores are the mean of those of all its heads."""

    def __init__(self, spec: VariantSpec, prefill: Prefill, budget: int) -> None:
        super().__init__(spec, prefill, budget)
        self.kv_heads = 1

    def head_table(self, name: str) -> Sequence[Sequence[float]]:
        """A layer's part is what its heads have together."""
        return [[sum(row)] for row in super().head_table(name)]

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

    def keep(self, selector: Selector, layers: slice, head_budgets: Tensor) -> Kept:
        """What the selector keeps as pages, cut where the budget of entries ends.

        Protected pages come first, then as many whole pages as the rest of the budget holds, as the
        selector chooses; what is left goes to the best other page, from its first entry on.

        Args:
            selector: of the variant; its budgets are pages.
            layers: places of the evictable layers.
            head_budgets: [layers, 1] int64, entries beyond those that are always kept.
        """
        chosen = selector.keep(self, layers, self._pages(head_budgets)).mask
        ranked = self.first()[layers].long()
        places = torch.arange(2, self.entries + 2, device=ranked.device).expand_as(ranked)
        turn = torch.empty_like(ranked).scatter(-1, ranked, places)
        turn = turn.masked_fill(chosen.to(turn.device), 1)
        by_turn = self._by_entry(turn, 0).argsort(dim=-1, stable=True).int()
        return Kept(keep_first(by_turn, head_budgets))

    def stage_one(self, selector: Selector, place: int, head_budgets: Tensor) -> Tensor | None:
        """Entries of the pages that its first stage chooses, [1, entries] bool; None without one.

        Those of protected pages are among them.
        """
        pages = self._pages(head_budgets)
        first = selector.stage_one(self, place, pages, {})
        return None if first is None else self._by_entry(first, fill=True)

    def _pages(self, head_budgets: Tensor) -> Tensor:
        spare = head_budgets - (self._all - len(self._free))
        return (spare.clamp(min=0) // self._size).clamp(max=self.entries)

    def _by_entry(self, of_pages: Tensor, fill: int) -> Tensor:
        """[..., entries] of [..., pages]; `fill` in pages that hold something protected."""
        found = of_pages.new_full((*of_pages.shape[:-1], self._all), fill)
        found[..., self._free] = of_pages[..., self._of_free]
        return found


def candidates_of(spec: VariantSpec, prefill: Prefill, budget: int) -> PromptCandidates:
    """The entries that a variant may evict, for its budget rule."""
    kind = SharedCandidates if is_shared(spec.params) else PromptCandidates
    return kind(spec, prefill, budget)


def selectable(
    spec: VariantSpec, prefill: Prefill, budget: int, entries: PromptCandidates
) -> PromptCandidates:
    """What its selector chooses from: `entries` or, of a layout of pages, those."""
    return PageCandidates(spec, prefill, budget) if page_size(spec.params) else entries


def keep(spec: VariantSpec, chosen_from: PromptCandidates, part: slice, budgets: Tensor) -> Kept:
    """What a variant keeps in some layers; see `Selector.keep`."""
    if isinstance(chosen_from, PageCandidates):
        return chosen_from.keep(spec.selector, part, budgets)
    return spec.selector.keep(chosen_from, part, budgets)


def page_note(kept: Tensor, size: int) -> str:
    """How many pages a server would hold, and how full.

    Args:
        kept: [layers, kv_heads, prompt_len] bool, alike in all heads.
        size: positions of a page.
    """
    layers, _, prompt_len = kept.shape
    padded = torch.nn.functional.pad(kept[:, 0], (0, -prompt_len % size))
    pages = int(padded.view(layers, -1, size).any(-1).sum())
    share = int(kept[:, 0].sum()) / max(1, pages * size)
    return (
        f"In pages of {size} positions: {pages / layers:.1f} pages per layer on average, "
        f"{share:.0%} of their room filled; a server holds them whole."
    )
