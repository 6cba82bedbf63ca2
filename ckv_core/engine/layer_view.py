"""One layer as the parts of a method see it: of a processed prompt, or what a row generated."""

from collections.abc import Callable, Iterator
from typing import cast

from torch import Tensor, nn

from ckv_core.engine.prefill import LayerStates, Prefill
from ckv_core.errors import EngineError
from ckv_core.methods.attention_scores import (
    full_window_attention,
    value_norm,
    window_attention,
    window_rows,
)
from ckv_core.methods.parts.views import Rotary, Statistic
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.rope import LayerRotary


class GeneratedLayer:
    """Generated entries of one layer, or all that a row holds; see `parts.views.LayerView`.

    Attention is that among these entries: the newest queries' over them, which sums to 1.
    """

    def __init__(self, loaded: LoadedModel, layer: int, states: LayerStates) -> None:
        self.loaded, self.layer, self._queries = loaded, layer, states.queries
        self.keys, self.values, self.scaling = states.keys, states.values, states.scaling
        self.kv_heads, self.query_heads = len(states.keys), len(states.queries)

    def window_queries(self, window: int) -> Tensor:
        return self._queries[:, -window:]

    def window_rows(self, window: int) -> Iterator[Tensor]:
        return window_rows(self.window_queries(window), self.keys, self.scaling)

    def window_attention(self, window: int) -> Tensor:
        return self.statistic(
            f"window {window}",
            lambda: window_attention(self.window_queries(window), self.keys, self.scaling),
        )

    def full_window_attention(self, window: int) -> Tensor:
        return self.statistic(
            f"full window {window}",
            lambda: full_window_attention(self.window_queries(window), self.keys, self.scaling),
        )

    def value_norms(self, order: int = 1) -> Tensor:
        projection = cast(nn.Linear, self.loaded.attentions[self.layer].o_proj)
        return self.statistic(
            f"norms {order}", lambda: value_norm(self.values, projection.weight, order)
        )

    def statistic(self, kind: str, compute: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002
        """Computed each time: the entries are new ones."""
        return compute()

    def observed(self, gathered: Statistic) -> Tensor:
        raise EngineError(f"Nothing observes {gathered.key!r} while generating.")

    def rotary(self) -> Rotary:
        raise EngineError("Queries are not averaged over positions while generating.")


class PromptLayer(GeneratedLayer):
    """One layer of a prompt; its statistics are computed once for all variants."""

    def __init__(self, prefill: Prefill, layer: int) -> None:
        super().__init__(prefill.loaded, layer, prefill.layers[layer])
        self._prefill = prefill

    def statistic(self, kind: str, compute: Callable[[], Tensor]) -> Tensor:
        """A tensor of this kind, as large in every layer; kept for all variants."""
        layers = len(self._prefill.layers)
        return self._prefill.memo.statistic(kind, self.layer, layers, compute)

    def observed(self, gathered: Statistic) -> Tensor:
        return self._prefill.observed[gathered.key][self.layer]

    def rotary(self) -> Rotary:
        return LayerRotary(self.loaded, self.layer)
