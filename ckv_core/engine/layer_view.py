"""One layer of a processed prompt as the parts of a method see it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from ckv_core.engine.prefill import LayerStates, Prefill
from ckv_core.methods.parts.views import Rotary, Statistic
from ckv_core.methods.scoring.value_norm import value_norm
from ckv_core.methods.scoring.window import full_window_attention, window_attention, window_rows
from ckv_core.models.rotary import LayerRotary


@dataclass(frozen=True, slots=True)
class PromptLayer:
    """Statistics of one layer, each computed once for all variants; see `parts.views.LayerView`."""

    prefill: Prefill
    layer: int

    @property
    def _states(self) -> LayerStates:
        return self.prefill.layers[self.layer]

    @property
    def keys(self) -> Tensor:
        """[kv_heads, prompt_len, head_dim]."""
        return self._states.keys

    @property
    def values(self) -> Tensor:
        """[kv_heads, prompt_len, value_dim]."""
        return self._states.values

    @property
    def kv_heads(self) -> int:
        """KV heads."""
        return self._states.keys.shape[0]

    @property
    def query_heads(self) -> int:
        """Query heads."""
        return self._states.queries.shape[0]

    def window_attention(self, window: int) -> Tensor:
        """Mean attention of the last `window` queries, [query_heads, prompt_len - window]."""
        states = self._states
        return self.statistic(
            f"window {window}",
            lambda: window_attention(states.queries[:, -window:], states.keys, states.scaling),
        )

    def full_window_attention(self, window: int) -> Tensor:
        """As `window_attention`, the window's own columns too, [query_heads, prompt_len]."""
        states = self._states
        return self.statistic(
            f"full window {window}",
            lambda: full_window_attention(states.queries[:, -window:], states.keys, states.scaling),
        )

    def window_rows(self, window: int) -> Iterator[Tensor]:
        """Attention of the last `window` queries, per query head [window, prompt_len]."""
        states = self._states
        return window_rows(states.queries[:, -window:], states.keys, states.scaling)

    def window_queries(self, window: int) -> Tensor:
        """The last `window` queries after RoPE, [query_heads, window, head_dim]."""
        return self._states.queries[:, -window:]

    def value_norms(self, order: int = 1) -> Tensor:
        """L1 or L2 norm of V W_O, [query_heads, prompt_len] float32."""
        weight = cast(nn.Linear, self.prefill.loaded.attentions[self.layer].o_proj).weight
        values = self._states.values
        return self.statistic(f"norms {order}", lambda: value_norm(values, weight, order))

    def observed(self, gathered: Statistic) -> Tensor:
        """What was gathered in this layer, by an observer or in further passes."""
        return self.prefill.observed[gathered.key][self.layer]

    @property
    def scaling(self) -> float:
        """Factor of the logits."""
        return self._states.scaling

    def rotary(self) -> Rotary:
        """The layer's RoPE."""
        return LayerRotary(self.prefill.loaded, self.layer)

    def statistic(self, kind: str, compute: Callable[[], Tensor]) -> Tensor:
        """A tensor of this kind, as large in every layer; kept for all variants."""
        layers = len(self.prefill.layers)
        return self.prefill.memo.statistic(kind, self.layer, layers, compute)
