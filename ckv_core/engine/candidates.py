"""The entries that one variant may evict, ordered by score: sorted once, kept for later runs.

Budget, alpha and budget rule do not change an order, so a run that changes them sorts nothing.
"""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from ckv_core.engine.layer_view import PromptLayer
from ckv_core.engine.needle_probe import table_of
from ckv_core.engine.prefill import Prefill
from ckv_core.methods.parameters import ParameterValue
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.layout import LAYOUT
from ckv_core.methods.parts.top_k import order
from ckv_core.methods.parts.views import LayerView
from ckv_core.request.variants import VariantSpec

Columns = slice | Tensor


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
    """Those of one variant in one prompt; see `parts.base.Candidates`.

    Attributes:
        scorer, parameters: of the variant.
        layers: evictable layers.
        kv_heads: KV heads of each.
        entries: of each head that may be evicted.
        columns: their positions, in order.
        spare: of them, what a head keeps on average.
        protected: entries of each head that are always kept.
    """

    def __init__(self, spec: VariantSpec, prefill: Prefill, budget: int) -> None:
        self.scorer: Scorer = spec.scorer
        self.parameters: Parameters = {**spec.params, "budget": budget}
        self.kv_heads = prefill.loaded.info.kv_heads
        self.columns: Columns = _columns(protected_mask(spec, prefill.prompt_len))
        self._evictable = prefill.loaded.info.evictable_layers
        self.layers = len(self._evictable)
        self.entries = _count(self.columns)
        self.protected = prefill.prompt_len - self.entries
        self.spare = budget - self.protected
        self._key = _score_key(spec, self.parameters)
        self._prefill = prefill

    def view(self, place: int) -> LayerView:
        """The evictable layer in that place."""
        return PromptLayer(self._prefill, self._evictable[place])

    def head_table(self, name: str) -> Sequence[Sequence[float]]:
        """How much each KV head of the evictable layers matters, by that table."""
        table = table_of(self._prefill.loaded, name)
        return [table[layer] for layer in self._evictable]

    def first(self) -> Tensor:
        """By the scorer's scores, [layers, kv_heads, entries] int32."""
        if self.scorer.by_position:
            newest = order(self.scores(0))
            return newest.expand(self.layers, -1, -1)
        return self._order("first", lambda view: self.scorer.scores(view, self.parameters))

    def joint(self) -> Tensor:
        """The same, the heads of a layer together, [layers, kv_heads * entries] int32."""
        key = ("joint", self._key)
        return self._prefill.memo.order(key, lambda: self._sort(self.scores, joint=True)).flatten(1)

    def by(self, key: tuple[ParameterValue, ...], score: Callable[[LayerView], Tensor]) -> Tensor:
        """By another score of all entries, [layers, kv_heads, entries] int32."""
        return self._order(key, score)

    def _order(self, key: Hashable, score: Callable[[LayerView], Tensor]) -> Tensor:
        def sort() -> Tensor:
            return self._sort(lambda place: self._evictable_part(score(self.view(place))))

        return self._prefill.memo.order((key, self._key), sort)

    def scores(self, place: int) -> Tensor:
        """The scorer's scores in one layer, [kv_heads, entries] float32."""
        return self._evictable_part(self.scorer.scores(self.view(place), self.parameters))

    def _evictable_part(self, scores: Tensor) -> Tensor:
        """[kv_heads, entries] of scores that may lack columns at the end."""
        return scores[:, self.columns]

    def _sort(self, scores: Callable[[int], Tensor], *, joint: bool = False) -> Tensor:
        """Score and sort layer by layer: only one layer's scores exist at a time."""
        shape = (self.layers, self.kv_heads, self.entries)
        orders = torch.empty(shape, dtype=torch.int32, device=self._prefill.device)
        for place in range(self.layers):
            score = scores(place)
            orders[place] = order(score.flatten() if joint else score).view(shape[1:])
        return orders


def _score_key(spec: VariantSpec, parameters: Parameters) -> tuple[Hashable, ...]:
    """Equal for equal scores of the same candidates."""
    return (spec.scorer.key(parameters), spec.passages, spec.params.get(LAYOUT.name))


def _columns(protected: Tensor) -> Columns:
    """A slice where they lie together, which they do but for a span in the middle."""
    free = (~protected).nonzero().flatten()
    first, last = int(free[0]), int(free[-1])
    return slice(first, last + 1) if last - first + 1 == len(free) else free


def _count(columns: Columns) -> int:
    return len(columns) if isinstance(columns, Tensor) else columns.stop - columns.start
