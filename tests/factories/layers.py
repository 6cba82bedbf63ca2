"""Layers whose attention, norms and states are given, as the parts of a method see them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ckv_core.methods import METHODS
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.critical import second_score
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.top_k import order
from ckv_core.methods.parts.views import Chunk, Observer, Rotary, Table, begun
from ckv_core.methods.parts.window import WINDOW_SCORER
from tests.reference.agnostic_scores import rotation


class Scores(NamedTuple):
    """[kv_heads, evictable] of both stages."""

    first: Tensor
    second: Tensor


PLAIN = Scaling(1.0)


@dataclass
class GivenStates:
    """A layer of given states and the window's attention, [query_heads, window, entries]."""

    keys: Tensor
    values: Tensor
    rows: Tensor
    norms: Tensor  # of either order
    layer: int = 0
    gathered: Tensor | None = None
    turning: Rotary | None = None
    scaling: Scaling = PLAIN
    positions: Tensor | None = None
    read: int = 0
    table: Tensor | None = None  # [numbers, heads]

    def head_table(self, table: Table) -> Tensor:
        assert self.table is not None
        return self.table

    @property
    def kv_heads(self) -> int:
        return len(self.keys)

    @property
    def query_heads(self) -> int:
        return len(self.rows)

    @property
    def prompt_len(self) -> int:
        return self.rows.shape[2]

    def window_rows(self, window: int) -> Iterator[Tensor]:
        assert window == self.rows.shape[1]
        return iter(self.rows)

    def window_attention(self, window: int) -> Tensor:
        return self.full_window_attention(window)[:, : self.rows.shape[2] - window]

    def full_window_attention(self, window: int) -> Tensor:
        assert window == self.rows.shape[1]
        return self.rows.mean(1)

    def window_queries(self, window: int) -> Tensor:
        """Made up of the rows."""
        generator = torch.Generator().manual_seed(self.rows.numel())
        return torch.randn(self.query_heads, window, self.keys.shape[2], generator=generator)

    def value_norms(self, order: int = 1) -> Tensor:
        return self.norms * order

    def observed(self, observer: Observer) -> Tensor:
        assert self.gathered is not None
        return self.gathered

    def rotary(self) -> Rotary:
        assert self.turning is not None
        return self.turning

    def statistic(self, kind: str, compute: Callable[[], Tensor]) -> Tensor:
        return compute()


def window_scores(
    attention: Tensor, norms: Tensor, kv_heads: int, parameters: Parameters
) -> Scores:
    """Of entries that are no sinks; the window is one query, whose own entry counts nothing."""
    rows = torch.nn.functional.pad(attention, (0, 1))[:, None]
    layer = GivenStates(torch.empty(kv_heads, 0), torch.empty(kv_heads, 0), rows, norms)
    parameters = {**parameters, "window": 1}
    first = WINDOW_SCORER.scores(layer, parameters)
    second = second_score(WINDOW_SCORER, layer, parameters)
    sinks = int(parameters["sinks"])
    return Scores(first[:, sinks:], second[:, sinks:])


@dataclass
class GivenCandidates:
    """Entries of given layers; `columns` are those that may be evicted."""

    scorer: Scorer
    parameters: Parameters
    given: list[GivenStates]
    columns: slice
    spare: int
    table: list[list[list[float]]] | None = None  # [numbers][layers][kv_heads]

    def __post_init__(self) -> None:
        self.layers, self.kv_heads = len(self.given), self.given[0].kv_heads
        self.entries = self.columns.stop - self.columns.start
        self.protected = self.given[0].keys.shape[1] - self.entries

    def head_table(self, table: Table) -> Tensor:
        return torch.tensor(self.table, dtype=torch.float64)

    def view(self, place: int) -> GivenStates:
        return self.given[place]

    def scores(self, place: int) -> Tensor:
        return self.scorer.scores(self.view(place), self.parameters)[:, self.columns]

    def first(self) -> Tensor:
        return order(torch.stack([self.scores(place) for place in range(self.layers)]))

    def joint(self) -> Tensor:
        return order(torch.stack([self.scores(place).flatten() for place in range(self.layers)]))

    def by(self, key: object, score: Callable[[GivenStates], Tensor]) -> Tensor:
        return order(torch.stack([score(each)[:, self.columns] for each in self.given]))


def kept(method: str, candidates: GivenCandidates) -> list[list[set[int]]]:
    """Budgets, then what each head of each layer keeps."""
    rule, selector = METHODS.get(method).budget_rule, METHODS.get(method).selector
    budgets = rule.head_budgets(candidates, candidates.spare, candidates.parameters)
    assert int(budgets.sum()) == candidates.layers * candidates.kv_heads * candidates.spare
    masks = [
        selector.keep(candidates, slice(place, place + 1), budgets[place : place + 1]).mask[0]
        for place in range(candidates.layers)
    ]
    return [[set(head.nonzero().flatten().tolist()) for head in mask] for mask in masks]


def random_layer(
    seed: int, kv_heads: int, group_size: int, entries: int, window: int = 1, dim: int = 4
) -> GivenStates:
    """Causal attention that is peaked enough for choices to differ."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    heads = kv_heads * group_size
    future = torch.ones(window, entries, dtype=torch.bool).triu(entries - window + 1)
    rows = (3 * normal(heads, window, entries)).masked_fill(future, -torch.inf).softmax(-1)
    states = normal(2, kv_heads, entries, dim)
    return GivenStates(states[0], states[1], rows, normal(heads, entries).exp())


@dataclass
class LiteralRotary:
    """Turns by the reference's matrices."""

    dim: int

    def _each(self, states: Tensor, start: int, sign: int) -> Tensor:
        turned = [
            states[:, t].double() @ rotation(sign * (start + t), self.dim).T
            for t in range(states.shape[1])
        ]
        return torch.stack(turned, dim=1).float()

    def turn(self, states: Tensor, start: int) -> Tensor:
        return self._each(states, start, 1)

    def undo(self, states: Tensor, start: int) -> Tensor:
        return self._each(states, start, -1)

    def mean_turn(self, states: Tensor, start: int, tokens: int) -> Tensor:
        turns = [rotation(start + t, self.dim) for t in range(tokens)]
        return (states.double() @ (sum(turns) / tokens).T).float()


DIM, SCALING, ROTARY = 4, Scaling(0.7), LiteralRotary(4)


def gathered(layer: GivenStates, observer: Observer, queries: Tensor, seed: int) -> GivenStates:
    """The layer with what an observer gathers in two chunks, whose border lies anywhere."""
    entries = queries.shape[1]
    layer.gathered = begun(observer, queries, entries)
    border = 1 + seed % (entries - 1)
    for start, end in ((0, border), (border, entries)):
        part = (queries[:, start:end], layer.keys[:, :end], layer.values[:, :end])
        observer.see(
            layer.gathered,
            Chunk(start, *part, SCALING, lambda: ROTARY, torch.empty, torch.empty),
        )
    layer.turning, layer.scaling = ROTARY, SCALING
    return layer


def plain_queries(heads: int, entries: int, seed: int) -> Tensor:
    """Before RoPE, with a mean."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(heads, entries, DIM, generator=generator) + 1


def scorer(method: str) -> Scorer:
    return METHODS.get(method).scorer
