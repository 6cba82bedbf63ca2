"""What a row holds while it generates, in one layer, ranked as a prompt's layer is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ckv_core.errors import EngineError
from ckv_core.methods.parameters import ParameterValue
from ckv_core.methods.parts.top_k import order
from ckv_core.methods.parts.views import LayerView, Rotary, Statistic
from ckv_core.methods.scoring.value_norm import value_norm
from ckv_core.methods.scoring.window import full_window_attention, window_attention, window_rows
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.variants import VariantSpec


@dataclass(frozen=True, slots=True)
class GeneratedLayer:
    """Generated entries of one layer, or all, as scorers and selectors see them.

    Attention is that among these entries: the newest queries' over them, which sums to 1.

    Attributes:
        keys: [kv_heads, entries, head_dim], oldest first.
        values: [kv_heads, entries, value_dim].
        queries: [query_heads, window, head_dim], of the newest entries.
        scaling: factor of the logits.
        output_weight: of o_proj.
        layer: index of the decoder layer.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor
    scaling: float
    output_weight: Callable[[], Tensor]
    layer: int

    @property
    def kv_heads(self) -> int:
        """KV heads."""
        return self.keys.shape[0]

    @property
    def query_heads(self) -> int:
        """Query heads."""
        return self.queries.shape[0]

    def window_attention(self, window: int) -> Tensor:
        """[query_heads, entries - window]."""
        return window_attention(self.queries[:, -window:], self.keys, self.scaling)

    def full_window_attention(self, window: int) -> Tensor:
        """[query_heads, entries]."""
        return full_window_attention(self.queries[:, -window:], self.keys, self.scaling)

    def window_rows(self, window: int) -> Iterator[Tensor]:
        """Per query head [window, entries]."""
        return window_rows(self.queries[:, -window:], self.keys, self.scaling)

    def window_queries(self, window: int) -> Tensor:
        """[query_heads, window, head_dim]."""
        return self.queries[:, -window:]

    def value_norms(self, order: int = 1) -> Tensor:
        """[query_heads, entries] float32."""
        return value_norm(self.values, self.output_weight(), order)

    def observed(self, gathered: Statistic) -> Tensor:
        """Nothing.

        Raises:
            EngineError: always.
        """
        raise EngineError(f"Nothing observes {gathered.key!r} while generating.")

    def statistic(self, kind: str, compute: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002
        """Computed each time: the entries are new ones."""
        return compute()

    def rotary(self) -> Rotary:
        """Nothing.

        Raises:
            EngineError: always.
        """
        raise EngineError("Queries are not averaged over positions while generating.")


class GeneratedCandidates:
    """Those entries but for the window; see `parts.base.Candidates`."""

    layers = 1

    def __init__(self, spec: VariantSpec, layer: GeneratedLayer, spare: int) -> None:
        self.scorer, self.parameters = spec.scorer, spec.params
        self.kv_heads = layer.kv_heads
        self.entries = layer.keys.shape[1] - spec.queries
        self.columns: slice | Tensor = slice(0, self.entries)
        self.spare = spare
        self.protected = spec.queries
        self._layer = layer

    def view(self, place: int) -> LayerView:  # noqa: ARG002 - there is one
        """The layer."""
        return self._layer

    def scores(self, place: int) -> Tensor:
        """[kv_heads, entries]."""
        return self.scorer.scores(self.view(place), self.parameters)[:, self.columns]

    def first(self) -> Tensor:
        """By the scorer's scores, [1, kv_heads, entries] int32."""
        return self.by((), lambda view: self.scorer.scores(view, self.parameters))

    def by(
        self,
        key: tuple[ParameterValue, ...],  # noqa: ARG002 - nothing is kept
        score: Callable[[LayerView], Tensor],
    ) -> Tensor:
        """By another score, [1, kv_heads, entries] int32."""
        return order(score(self._layer)[:, self.columns])[None]

    def head_table(self, name: str) -> Sequence[Sequence[float]]:
        """Of no budget rule: every head keeps the same number.

        Raises:
            EngineError: always.
        """
        raise EngineError(f"Table {name!r} is for the prompt's entries.")

    def joint(self) -> Tensor:
        """Of no budget rule: every head keeps the same number.

        Raises:
            EngineError: always.
        """
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
            count: entries that each head keeps.

        Returns:
            [kv_heads, entries] bool.
        """
        projection = cast(nn.Linear, self.loaded.attentions[layer].o_proj)
        view = GeneratedLayer(*states, queries, scaling, lambda: projection.weight, layer)
        candidates = GeneratedCandidates(self.spec, view, count - self.spec.queries)
        budgets = torch.full((1, view.kv_heads), candidates.spare)
        kept = torch.ones_like(view.keys[..., 0], dtype=torch.bool)
        chosen = self.spec.selector.keep(candidates, slice(0, 1), budgets)
        kept[:, candidates.columns] = chosen.mask[0]
        return kept
