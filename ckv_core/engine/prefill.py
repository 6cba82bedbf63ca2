"""One forward pass over the compressed prompt; every variant is selected from what it yields."""

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ckv_core.base.device_memory import trim
from ckv_core.base.devices import is_cuda_like
from ckv_core.base.stopwatch import Marks
from ckv_core.engine.causal import causal_attention, sliding_attention
from ckv_core.errors import RunCancelledError
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.views import Chunk, FurtherPasses, Observer, Statistic, begun
from ckv_core.models.attention import inputs_shown
from ckv_core.models.linear import Carried, LinearState
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.rope import LayerRotary, read_as_whole
from ckv_core.models.shape import CHUNK, CUDA_CHUNK, KEPT_QUERIES, sliding_entries
from ckv_core.records.events import Progress
from ckv_core.records.variants import VariantSpec

KEPT_ORDERS = 8  # of entries by score; eight variants of one window and one pooling need three


@dataclass(slots=True)
class Memo:
    """Tensors by kind and layer, and the last orders by their keys."""

    _statistics: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    _rooms: dict[str, Tensor] = field(default_factory=dict)
    _orders: OrderedDict[Hashable, Tensor] = field(default_factory=OrderedDict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held, also of the room of layers that have none yet."""
        statistics = (self._rooms or self._statistics).values()
        return sum(tensor.nbytes for tensor in (*statistics, *self._orders.values()))

    def clear(self) -> None:
        self._statistics.clear()
        self._rooms.clear()
        self._orders.clear()

    def statistic(
        self, kind: str, layer: int, layers: int, compute: Callable[[], Tensor]
    ) -> Tensor:
        """One layer's tensor of a kind, computed where it is not here.

        On the CPU those of all layers lie in one tensor: a small tensor left behind by each layer,
        between large ones that come and go, would split the C library's free memory until it has
        to ask for more.
        """
        if (kind, layer) not in self._statistics:
            computed = compute()
            if computed.device.type == "cpu":
                if kind not in self._rooms:
                    self._rooms[kind] = computed.new_empty(layers, *computed.shape)
                computed = self._rooms[kind][layer].copy_(computed)
            self._statistics[kind, layer] = computed
        return self._statistics[kind, layer]

    def order(self, key: Hashable, sort: Callable[[], Tensor]) -> Tensor:
        """The order of that key; `sort` makes it where it is not among the last KEPT_ORDERS."""
        if key not in self._orders:
            while len(self._orders) >= KEPT_ORDERS:
                self._orders.popitem(last=False)
            self._orders[key] = sort()
        self._orders.move_to_end(key)
        return self._orders[key]


def chunk_tokens(device: torch.device) -> int:
    """Tokens that a forward pass over a prompt reads on a device."""
    return CUDA_CHUNK if is_cuda_like(device) else CHUNK


@dataclass(slots=True)
class LayerStates:
    """One layer after prefill."""

    # keys, values: [kv_heads, held, head_dim or value_dim], keys after RoPE: all entries of the
    # prompt, or of a sliding layer the last ones.
    keys: Tensor
    values: Tensor
    queries: Tensor  # [query_heads, window, head_dim], the last queries after RoPE
    scaling: Scaling
    # Of a linear layer, which has no entries and no queries: what it carries.
    state: LinearState | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """The queries and statistics that variants ask of a prefill."""

    window: int = 0  # last queries
    observers: tuple[Observer, ...] = ()  # all different
    # Further ones, all different; they can be made up for later.
    passes: tuple[FurtherPasses, ...] = ()

    @classmethod
    def of(cls, specs: Iterable[VariantSpec]) -> "Needs":
        specs = list(specs)
        observers = dict.fromkeys(each for spec in specs for each in spec.observers)
        passes = dict.fromkeys(each for spec in specs for each in spec.passes)
        window = max((spec.queries for spec in specs), default=0)
        return cls(window, tuple(observers), tuple(passes))


@dataclass(slots=True)
class Prefill:
    """The processed prompt: plain data, and a memo of what was computed from it."""

    loaded: LoadedModel
    layers: list[LayerStates]  # one per decoder layer
    logits: Tensor  # [vocabulary] of the last token, float32
    # What observers and further passes gathered; of evictable layers, by layer.
    observed: dict[Statistic, dict[int, Tensor]] = field(default_factory=dict)
    memo: Memo = field(default_factory=Memo)  # statistics and orders that variants share
    gathered_ms: dict[Statistic, float] = field(default_factory=dict)  # what each of them took

    @property
    def prompt_len(self) -> int:
        return self._entries.shape[1]

    @property
    def device(self) -> torch.device:
        """Where scores of all layers meet."""
        return self._entries.device

    @property
    def _entries(self) -> Tensor:
        return self.layers[self.loaded.info.evictable_layers[0]].keys

    def lends(self, tokens: int) -> bool:
        """Whether another prompt can go on after the first `tokens` of this one."""
        if self.loaded.linears:  # no state goes back
            return tokens == self.prompt_len
        return all(
            window is None or tokens - (window - 1) >= self.prompt_len - states.keys.shape[1]
            for window, states in zip(self.loaded.sliding_windows, self.layers, strict=True)
        )

    def serves(self, needs: Needs) -> bool:
        """Whether it has the last queries and statistics that variants ask for."""
        first = self.layers[self.loaded.info.evictable_layers[0]]
        has_queries = first.queries.shape[1] >= min(needs.window, self.prompt_len)
        return has_queries and all(each in self.observed for each in needs.observers)

    @property
    def nbytes(self) -> int:
        states = [t for layer in self.layers for t in (layer.keys, layer.values, layer.queries)]
        observed = [tensor for layers in self.observed.values() for tensor in layers.values()]
        carried = sum(layer.state.nbytes for layer in self.layers if layer.state)
        held = sum(t.nbytes for t in (*states, *observed, self.logits))
        return held + carried + self.memo.nbytes


def sliding_room(window: int, device: torch.device) -> int:
    """Entries that a sliding layer holds of a long prompt; see `sliding_entries`."""
    return sliding_entries(window, chunk_tokens(device))


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first tokens of a prompt, which an earlier prefill has read."""

    source: Prefill
    # A multiple of the device's chunk, so that the borders of chunks, and with them all bits, are
    # those of a prompt read from the start.
    tokens: int

    def held(self, layer: int) -> int:
        """Entries that the source holds of a layer."""
        return self.source.layers[layer].keys.shape[1]


class Reader(Carried):
    """Has the model read tokens in chunks; a subclass has `attend`, each layer's attention."""

    def __init__(self, loaded: LoadedModel, should_stop: Callable[[], bool]) -> None:
        super().__init__()
        self.loaded, self._should_stop = loaded, should_stop
        self._hidden = torch.empty(0)  # what the attention under way was given

    def read(self, token_ids: Tensor, start: int, length: int, *, is_seen: bool) -> Tensor:
        """Read [1, tokens] at positions from `start` on, of so many; the last one's logits."""
        watched = self.loaded.attentions.values() if is_seen else ()

        def take_hidden(states: Tensor) -> None:
            self._hidden = states[0]

        positions = torch.arange(start, start + token_ids.shape[1], device=token_ids.device)
        with read_as_whole(self.loaded.model, length), inputs_shown(watched, take_hidden):
            output = self.loaded.model(
                input_ids=token_ids,
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=1,
                ckv_context=self,
            )
        return cast(Tensor, output.logits[0, -1])

    def _causal(
        self, layer: int, start: int, query: Tensor, states: tuple[Tensor, Tensor], scaling: Scaling
    ) -> tuple[Tensor, Chunk]:
        """Attention over keys and values [kv_heads, entries, dim], and what observers see of it."""
        keys, values = states
        out, total = causal_attention(query, keys[None], values[None], scaling)
        seen = Chunk(
            start,
            query[0],
            keys,
            values,
            scaling,
            partial(LayerRotary, self.loaded, layer),
            total[0],
            lambda: self._hidden,
        )
        return out, seen


class PromptReader(Reader):
    """Causal attention over all chunks so far; keeps keys, values and the last queries."""

    def __init__(
        self,
        loaded: LoadedModel,
        prompt_len: int,
        needs: Needs,
        should_stop: Callable[[], bool],
        prefix: Prefix | None,
    ) -> None:
        super().__init__(loaded, should_stop)
        self._windows = loaded.sliding_windows
        self._prompt_len = self._room = prompt_len  # entries that a layer has room for
        self._window = min(max(needs.window, KEPT_QUERIES), prompt_len)
        self._prefix = prefix
        self._observers = needs.observers
        self.observed: dict[Statistic, dict[int, Tensor]] = {each: {} for each in needs.observers}
        self.marks: dict[tuple[Statistic, torch.device], Marks] = {}
        self._first_held = [0] * loaded.info.layers  # position of the first entry ever held
        self.layers: list[LayerStates | None] = [None] * loaded.info.layers
        if prefix is not None:
            self.states = states_of(prefix.source)
        self.first = 0 if prefix is None else prefix.tokens
        self.start = self.first

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling
    ) -> Tensor:
        if self._should_stop():
            raise RunCancelledError
        states = self.layers[layer] or self._allocate(layer, query, key, value)
        states.scaling = scaling
        held = min(self.start - self.first, self._window)
        newest = query[0, :, -self._window :]  # of a long chunk all would be copied
        recent = torch.cat([states.queries[:, :held], newest], dim=1)[:, -self._window :]
        states.queries[:, : recent.shape[1]] = recent
        if self._windows[layer] is not None:
            return self._slide(layer, states, query, key[0], value[0])
        held_states = self._hold(layer, states, key[0], value[0])
        out, seen = self._causal(layer, self.start, query, held_states, scaling)
        for observer in self._observers:
            statistics = self.observed[observer]
            if layer not in statistics:
                statistics[layer] = begun(observer, seen.queries, self._prompt_len)
            marks = self.marks.setdefault((observer, query.device), Marks(query.device))
            marks.mark()
            observer.see(statistics[layer], seen)
            marks.mark()
        return out

    def _hold(
        self,
        layer: int,  # noqa: ARG002 - of what reads in blocks
        states: LayerStates,
        key: Tensor,
        value: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Take in a chunk's entries; returns all that its queries see."""
        end = self.start + key.shape[1]
        states.keys[:, self.start : end] = key
        states.values[:, self.start : end] = value
        return states.keys[:, :end], states.values[:, :end]

    def _slide(
        self, layer: int, states: LayerStates, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Attention of a sliding layer, which then holds the newest entries only."""
        window, room = cast(int, self._windows[layer]), states.keys.shape[1]
        held = min(self.start - self._first_held[layer], room)
        keys = torch.cat([states.keys[:, :held], key], dim=1)
        values = torch.cat([states.values[:, :held], value], dim=1)
        out = sliding_attention(query, keys[None], values[None], window, states.scaling)
        newest = keys[:, -room:]
        states.keys[:, : newest.shape[1]] = newest
        states.values[:, : newest.shape[1]] = values[:, -room:]
        return out

    def _allocate(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> LayerStates:
        """Room for a layer; on the CPU for all like it, before activations come and go around."""
        window = self._windows[layer]
        alike = [index for index, other in enumerate(self._windows) if other == window]
        made = alike if key.device.type == "cpu" else [layer]
        lent = 0  # position of the first entry that the prefix holds
        if self._prefix is not None:
            lent = self._prefix.source.prompt_len - self._prefix.held(layer)
        room = self._room
        if window is not None:
            room = self._prompt_len - max(
                lent, self._prompt_len - sliding_room(window, key.device), 0
            )
        heads, length = (len(made), key.shape[1]), room
        keys = key.new_empty(*heads, length, key.shape[3])
        values = value.new_empty(*heads, length, value.shape[3])
        queries = query.new_empty(len(made), query.shape[1], self._window, query.shape[3])
        for at, index in enumerate(made):
            states = LayerStates(keys[at], values[at], queries[at], Scaling(1.0))
            if self._prefix is not None:  # copied, so that either prefill may be dropped alone
                source = self._prefix.source.layers[index]
                taken = min(self.first - lent, room)
                held = slice(self.first - lent - taken, self.first - lent)
                states.keys[:, :taken] = source.keys[:, held]
                states.values[:, :taken] = source.values[:, held]
                self._first_held[index] = self.first - taken
            self.layers[index] = states
        return cast(LayerStates, self.layers[layer])

    def whole(self) -> list[LayerStates]:
        """All layers once the prompt is read; linear ones with what they carry alone."""
        info = self.loaded.info
        for layer, state in self.states.items():
            none = state.conv.new_empty(info.kv_heads, 0, info.head_dim)
            queries = state.conv.new_empty(info.query_heads, 0, info.head_dim)
            self.layers[layer] = LayerStates(none, none, queries, Scaling(1.0), state)
        return [states for states in self.layers if states is not None]


def states_of(prefilled: Prefill) -> dict[int, LinearState]:
    """By layer, what linear layers carry at the end of a prompt."""
    return {at: each.state for at, each in enumerate(prefilled.layers) if each.state}


def prefill(
    loaded: LoadedModel,
    token_ids: list[int],
    needs: Needs,
    should_stop: Callable[[], bool],
    prefix: Prefix | None = None,
) -> Generator[Progress, None, Prefill]:
    """Process a prompt of at least one token in chunks, with progress after each.

    `should_stop` is called at every layer. `prefix` is taken over instead of read: at least the
    needed window (and KEPT_QUERIES) follows it. None with observers, which would not see it.
    """
    reader = PromptReader(loaded, len(token_ids), needs, should_stop, prefix)
    ids = torch.tensor([token_ids], device=loaded.device)
    logits = ids.new_empty(0)
    whole, is_seen = len(token_ids), bool(needs.observers)
    for part in torch.split(ids[:, reader.first :], chunk_tokens(loaded.device), dim=1):
        logits = reader.read(part, reader.start, whole, is_seen=is_seen).float()
        reader.start += part.shape[1]
        yield Progress("prefill", reader.start / whole, f"{reader.start:,} of {whole:,} tokens")
    trim()
    spent = dict.fromkeys(reader.observed, 0.0)
    for (observer, _), marks in reader.marks.items():
        spent[observer] += sum(marks.spans_ms()[::2])
    return Prefill(loaded, reader.whole(), logits, reader.observed, gathered_ms=spent)
