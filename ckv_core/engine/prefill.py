"""One forward pass over the compressed prompt; every variant is selected from what it yields."""

from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from ckv_core.engine.causal import causal_attention, sliding_attention
from ckv_core.errors import RunCancelledError
from ckv_core.events import Progress
from ckv_core.knobs import KnobValue
from ckv_core.metrics.memory import trim
from ckv_core.modeling.loaded import LoadedModel
from ckv_core.modeling.rope import read_as_whole
from ckv_core.scoring.value_norm import value_norm
from ckv_core.scoring.window import full_window_attention, window_attention

KEPT_QUERIES = 128  # last queries kept in any case, so that a wider window can be scored later
CHUNK = 1024  # tokens per forward pass: bounds activations and lets progress and cancel through
KEPT_ORDERS = 8  # of entries by score; eight variants of one window and one pooling need three

OrderKey = tuple[KnobValue, ...]


@dataclass(slots=True)
class LayerStates:
    """What prefill leaves of one layer.

    Attributes:
        keys, values: [kv_heads, prompt_len, head_dim or value_dim], keys after RoPE.
        queries: [query_heads, window, head_dim], the last queries after RoPE.
        scaling: factor of the logits.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor
    scaling: float


@dataclass(slots=True)
class Prefill:
    """The processed prompt, and the scores and orders of its entries that variants share.

    Attributes:
        layers: one per decoder layer.
        logits: [vocabulary] of the last token, float32.
    """

    loaded: LoadedModel
    layers: list[LayerStates]
    logits: Tensor
    _scores: dict[tuple[str, int], Tensor] = field(default_factory=dict)  # by kind and layer
    _rooms: dict[str, Tensor] = field(default_factory=dict)
    _orders: OrderedDict[OrderKey, Tensor] = field(default_factory=OrderedDict)

    @property
    def prompt_len(self) -> int:
        """Tokens processed."""
        return self.layers[0].keys.shape[1]

    @property
    def window(self) -> int:
        """Last queries kept: the widest observation window that can be scored."""
        return self.layers[0].queries.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held; of scores also the room of layers that have none."""
        states = [t for layer in self.layers for t in (layer.keys, layer.values, layer.queries)]
        scores = (self._rooms or self._scores).values()
        tensors = (*states, *scores, *self._orders.values(), self.logits)
        return sum(tensor.nbytes for tensor in tensors)

    def window_attention(self, layer: int, window: int) -> Tensor:
        """Mean attention of the last `window` queries, [query_heads, prompt_len - window]."""
        kind = f"window {window}"
        if (kind, layer) not in self._scores:
            states = self.layers[layer]
            attention = window_attention(states.queries[:, -window:], states.keys, states.scaling)
            self._keep(kind, layer, attention)
        return self._scores[kind, layer]

    def full_window_attention(self, layer: int, window: int) -> Tensor:
        """As `window_attention`, the window's own columns too, [query_heads, prompt_len]."""
        kind = f"full window {window}"
        if (kind, layer) not in self._scores:
            states = self.layers[layer]
            queries = states.queries[:, -window:]
            attention = full_window_attention(queries, states.keys, states.scaling)
            self._keep(kind, layer, attention)
        return self._scores[kind, layer]

    def value_norms(self, layer: int) -> Tensor:
        """L1 norm of V W_O, [query_heads, prompt_len] float32."""
        if ("norms", layer) not in self._scores:
            projection = cast(nn.Linear, self.loaded.attentions[layer].o_proj)
            norms = value_norm(self.layers[layer].values, projection.weight)
            self._keep("norms", layer, norms)
        return self._scores["norms", layer]

    def order(self, key: OrderKey, sort: Callable[[], Tensor]) -> Tensor:
        """The order of that key; `sort` makes it where it is not among the last KEPT_ORDERS."""
        if key not in self._orders:
            while len(self._orders) >= KEPT_ORDERS:
                self._orders.popitem(last=False)
            self._orders[key] = sort()
        self._orders.move_to_end(key)
        return self._orders[key]

    def _keep(self, kind: str, layer: int, scores: Tensor) -> None:
        """Keep one layer's scores; on the CPU those of all layers lie in one tensor.

        A small tensor left behind by each layer, between large ones that come and go, would split
        the C library's free memory until it has to ask for more.
        """
        if scores.device.type == "cpu":
            if kind not in self._rooms:
                self._rooms[kind] = scores.new_empty(len(self.layers), *scores.shape)
            scores = self._rooms[kind][layer].copy_(scores)
        self._scores[kind, layer] = scores


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first tokens of a prompt, which an earlier prefill has read.

    Attributes:
        tokens: a multiple of CHUNK, so that the borders of chunks, and with them all bits, are
            those of a prompt read from the start.
    """

    source: Prefill
    tokens: int


class _PrefillContext:
    """Causal attention over all chunks so far; keeps keys, values and the last queries."""

    def __init__(
        self,
        loaded: LoadedModel,
        prompt_len: int,
        window: int,
        should_stop: Callable[[], bool],
        prefix: Prefix | None,
    ) -> None:
        self._windows = loaded.sliding_windows
        self._prompt_len = prompt_len
        self._window = min(window, prompt_len)
        self._should_stop = should_stop
        self._prefix = prefix
        self.layers: list[LayerStates | None] = [None] * loaded.info.layers
        self.first = 0 if prefix is None else prefix.tokens
        self.start = self.first

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        if self._should_stop():
            raise RunCancelledError
        states = self.layers[layer] or self._allocate(layer, query, key, value)
        states.scaling = scaling
        end = self.start + query.shape[2]
        states.keys[:, self.start : end] = key[0]
        states.values[:, self.start : end] = value[0]
        held = min(self.start - self.first, self._window)
        recent = torch.cat([states.queries[:, :held], query[0]], dim=1)[:, -self._window :]
        states.queries[:, : recent.shape[1]] = recent
        window = self._windows[layer]
        if window is None:
            keys, values = states.keys[None, :, :end], states.values[None, :, :end]
            return causal_attention(query, keys, values, scaling)
        first = max(0, self.start - window + 1)  # earlier entries are seen by no new token
        keys, values = states.keys[None, :, first:end], states.values[None, :, first:end]
        mask = visible(self.start, end, first, end, window, query.device)
        return sliding_attention(query, keys, values, mask, scaling)

    def _allocate(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> LayerStates:
        """Room for a layer; on the CPU for all layers, before activations come and go around it."""
        made = range(len(self.layers)) if key.device.type == "cpu" else [layer]
        heads, length = (len(made), key.shape[1]), self._prompt_len
        keys = key.new_empty(*heads, length, key.shape[3])
        values = value.new_empty(*heads, length, value.shape[3])
        queries = query.new_empty(len(made), query.shape[1], self._window, query.shape[3])
        for at, index in enumerate(made):
            states = LayerStates(keys[at], values[at], queries[at], scaling=1.0)
            if self._prefix is not None:  # copied, so that either prefill may be dropped alone
                source = self._prefix.source.layers[index]
                states.keys[:, : self.first] = source.keys[:, : self.first]
                states.values[:, : self.first] = source.values[:, : self.first]
            self.layers[index] = states
        return cast(LayerStates, self.layers[layer])


def visible(
    query_start: int,
    query_end: int,
    key_start: int,
    key_end: int,
    window: int | None,
    device: torch.device,
) -> Tensor:
    """Causal (and sliding) visibility by position, [queries, keys] bool."""
    query = torch.arange(query_start, query_end, device=device)[:, None]
    key = torch.arange(key_start, key_end, device=device)
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def prefill(
    loaded: LoadedModel,
    token_ids: list[int],
    window: int,
    should_stop: Callable[[], bool],
    prefix: Prefix | None = None,
) -> Generator[Progress, None, Prefill]:
    """Process the prompt in chunks, with progress after each.

    Args:
        loaded: the model.
        token_ids: [prompt_len], at least one.
        window: how many of the last queries to keep, at least.
        should_stop: asked at every layer.
        prefix: taken over instead of read; at least `window` tokens (and KEPT_QUERIES) follow it.

    Returns:
        The states that variants are selected from (the generator's return value).

    Raises:
        RunCancelledError: should_stop said so.
    """
    window = max(window, KEPT_QUERIES)
    context = _PrefillContext(loaded, len(token_ids), window, should_stop, prefix)
    ids = torch.tensor([token_ids], device=loaded.device)
    logits = ids.new_empty(0)
    for start in range(context.first, len(token_ids), CHUNK):
        end = min(start + CHUNK, len(token_ids))
        context.start = start
        with read_as_whole(loaded.model, len(token_ids)):
            output = loaded.model(
                input_ids=ids[:, start:end],
                position_ids=torch.arange(start, end, device=ids.device)[None],
                use_cache=False,
                logits_to_keep=1,
                ckv_context=context,
            )
        logits = output.logits[0, -1].float()
        yield Progress("prefill", end / len(token_ids), f"{end:,} of {len(token_ids):,} tokens")
    trim()
    layers = [states for states in context.layers if states is not None]
    return Prefill(loaded, layers, logits)
