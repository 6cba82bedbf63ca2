"""Chooses among what a row holds while it generates, as its variant chose in the prompt."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ckv_core.engine.layer_view import GeneratedLayer
from ckv_core.engine.outside import checked_keep, checked_scorer
from ckv_core.engine.prefill import LayerStates
from ckv_core.errors import EngineError
from ckv_core.methods.parts.top_k import order
from ckv_core.methods.parts.views import LayerView
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.variants import VariantSpec


class GeneratedCandidates:
    """Those entries but for the window; see `parts.base.Candidates`."""

    layers = 1

    def __init__(self, spec: VariantSpec, layer: GeneratedLayer, spare: int) -> None:
        self.kv_heads, self.parameters = layer.kv_heads, spec.params
        self.entries = layer.keys.shape[1] - spec.queries
        self.scorer = checked_scorer(spec, self.entries)
        self.columns: slice | Tensor = slice(0, self.entries)
        self.spare = spare
        self.protected = spec.queries
        self._layer = layer

    def view(self, place: int) -> LayerView:  # noqa: ARG002 - there is one
        return self._layer

    def scores(self, place: int) -> Tensor:
        return self.scorer.scores(self.view(place), self.parameters)[:, self.columns]

    def first(self) -> Tensor:
        return self.by("first", lambda view: self.scorer.scores(view, self.parameters))

    def by(self, key: Hashable, score: Callable[[LayerView], Tensor]) -> Tensor:  # noqa: ARG002
        return order(score(self._layer)[:, self.columns])[None]

    # No budget rule asks: every head keeps the same number.

    def head_table(self, name: str) -> Sequence[Sequence[float]]:
        raise EngineError(f"Table {name!r} is for the prompt's entries.")

    def joint(self) -> Tensor:
        raise EngineError("Heads do not compete for generated entries.")


@dataclass(frozen=True, slots=True)
class Chooser:
    """Chooses among a row's entries by its variant's scorer and selector."""

    spec: VariantSpec
    loaded: LoadedModel

    def keep(
        self, layer: int, states: tuple[Tensor, Tensor], queries: Tensor, scaling: float, count: int
    ) -> Tensor:
        """The newest entries, as many as the window has, and the best of the others.

        Args:
            layer: index of the decoder layer.
            states: keys and values of the entries, [kv_heads, entries, dim].
            queries: the newest, [query_heads, window, head_dim].
            scaling: factor of the logits.
            count: of True in each row of what is given back, [kv_heads, entries] bool.
        """
        view = GeneratedLayer(self.loaded, layer, LayerStates(*states, queries, scaling))
        candidates = GeneratedCandidates(self.spec, view, count - self.spec.queries)
        budgets = torch.full((1, view.kv_heads), candidates.spare)
        kept = torch.ones_like(view.keys[..., 0], dtype=torch.bool)
        chosen = checked_keep(self.spec, candidates, slice(0, 1), budgets)
        kept[:, candidates.columns] = chosen.mask[0]
        return kept
