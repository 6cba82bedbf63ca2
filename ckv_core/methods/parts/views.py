"""What parts see of a prompt: shape, chunks while it is read, further passes, its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal, NamedTuple, Protocol

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.parts.scaling import Scaling


@dataclass(frozen=True, slots=True)
class PromptShape:
    """The sizes that the memory of a part depends on."""

    layers: int  # evictable layers
    # query_heads, kv_heads: of each.
    query_heads: int
    kv_heads: int
    head_dim: int  # numbers of one key
    prompt_len: int  # compressed tokens
    on_cuda: bool = False


class Statistic(Protocol):
    """A statistic of every evictable layer, kept with the prefill; equal ones share it."""

    kind: ClassVar[str]  # what it is, for a reader

    def __hash__(self) -> int:
        """Such as a frozen dataclass has."""

    def size(self, query_heads: int, head_dim: int, prompt_len: int) -> tuple[int, ...]:
        """Shape of one layer's statistic: float32, and 0 before anything is seen."""

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        """Upper bound of what taking in `chunk` tokens needs for a moment."""


def begun(gathered: Statistic, queries: Tensor, prompt_len: int) -> Tensor:
    """A layer's statistic before anything is seen, whose queries are [heads, tokens, head_dim]."""
    size = gathered.size(len(queries), queries.shape[-1], prompt_len)
    return torch.zeros(size, dtype=torch.float32, device=queries.device)


def statistic_bytes(gathered: Statistic, shape: PromptShape) -> int:
    """Bytes of a statistic in all layers."""
    return (
        4 * shape.layers * prod(gathered.size(shape.query_heads, shape.head_dim, shape.prompt_len))
    )


class Observer(Statistic, Protocol):
    """A statistic that is gathered while the prompt is read."""

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        """Take in one chunk of one layer; writes into `statistic`."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens that further passes are made of."""

    token_ids: tuple[int, ...]  # of the compressed prompt
    lead: int  # how many of them the chat template writes before the user's text
    closing: tuple[int, ...]  # what the template writes after it, up to where an answer begins
    encode: Callable[[str], Sequence[int]]  # the tokens of a text, without special ones


@dataclass(frozen=True, slots=True)
class FurtherPass:
    """Tokens that are read behind the whole prompt and then forgotten."""

    token_ids: tuple[int, ...]  # at least one
    part: slice  # positions of the prompt that they are about
    lead: int  # of the prompt's tokens
    prompt_len: int  # all of them


class FurtherPasses(Statistic, Protocol):
    """A statistic that is gathered in passes over given tokens, once the prompt has been read."""

    # Whether a pass goes back too, in one piece: layers are then shown with `Chunk.gradient`.
    goes_back: ClassVar[bool]

    @property
    def shorter_by(self) -> str:
        """The SPEC key whose lower values make the passes shorter."""

    def passes(self, prompt: PromptTokens) -> Sequence[FurtherPass]:
        """All of them, in order."""

    def see(self, statistic: Tensor, chunk: Chunk, seen: FurtherPass) -> None:
        """Take in one chunk of one pass in one layer; its keys are the prompt's, then the pass's.

        Writes into `statistic`.
        """


class Rotary(Protocol):
    """A layer's own RoPE, which turns queries and keys."""

    def turn(self, states: Tensor, start: int) -> Tensor:
        """[heads, tokens, head_dim] float32 at positions from `start` on, as the model does."""

    def undo(self, states: Tensor, start: int) -> Tensor:
        """Undo `turn`."""

    def mean_turn(self, states: Tensor, start: int, tokens: int) -> Tensor:
        """The mean of each state turned to every one of these positions; shapes as they are."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A layer's view of some consecutive prompt tokens."""

    start: int  # position of the first of them
    queries: Tensor  # [query_heads, tokens, head_dim], after RoPE
    keys: Tensor  # [kv_heads, entries, head_dim], of all positions so far, the chunk's own included
    values: Tensor  # [kv_heads, entries, value_dim]
    scaling: Scaling
    rotary: Callable[[], Rotary]  # makes the layer's RoPE
    log_sum_exp: Tensor  # [query_heads, tokens] float32, of each query's logits over all it sees
    # Gives what the layer's attention was given, [tokens, hidden_size].
    hidden: Callable[[], Tensor]
    # [tokens] float32, of a pass that goes back: the L2 norm of the gradient of the last hidden
    # states' squared sizes, summed over the pass, by what attention gave each token. No
    # `log_sum_exp` then.
    gradient: Tensor | None = None


class Table(NamedTuple):
    """Numbers for each head of a model, which must be there before a part chooses.

    Kinds: how much a KV head matters, from 0 to 1 (share); the share of its entries that goes where
    1 to 99 % of all go (curves); of a query head the mean query before RoPE, and the mean length of
    each pair of its channels (centres).
    """

    name: str
    kind: Literal["share", "curves", "centres"] = "share"
    own: bool = False  # whether it is made where a model has none; else a file brings it


class LayerView(Protocol):
    """One evictable layer of a processed prompt, as scorers and selectors see it."""

    layer: int  # index of the decoder layer
    keys: Tensor  # [kv_heads, entries, head_dim], after RoPE
    values: Tensor  # [kv_heads, entries, value_dim]
    kv_heads: int  # KV heads
    query_heads: int  # query heads; head h reads KV head h // (query_heads / kv_heads)
    scaling: Scaling
    # [kv_heads, entries] int64, places in the prompt; None where entries are all of it, in order.
    positions: Tensor | None
    prompt_len: int  # tokens of the whole prompt
    read: int  # tokens read so far; also the position of the next

    def window_attention(self, window: int) -> Tensor:
        """Mean attention of the last `window` queries, [query_heads, entries - window]."""

    def full_window_attention(self, window: int) -> Tensor:
        """Mean attention with the window's own columns too, [query_heads, entries]."""

    def window_rows(self, window: int) -> Iterator[Tensor]:
        """The attention of each of the last `window` queries, of one query head after the other.

        Yields:
            [window, entries] float32; rows sum to 1, less what a sink draws.
        """

    def window_queries(self, window: int) -> Tensor:
        """The last `window` queries after RoPE, [query_heads, window, head_dim]."""

    def value_norms(self, order: int = 1) -> Tensor:
        """L1 or L2 norm of V W_O, [query_heads, entries] float32."""

    def observed(self, gathered: Statistic) -> Tensor:
        """Return what was gathered in this layer, by an observer or in further passes."""

    def statistic(self, kind: str, compute: Callable[[], Tensor]) -> Tensor:
        """A few numbers, computed once for all variants; equal kinds share them."""

    def rotary(self) -> Rotary:
        """The layer's RoPE."""

    def head_table(self, table: Table) -> Tensor:
        """A table's numbers for the layer, [numbers, heads] float64; see `Table` for the kinds."""
