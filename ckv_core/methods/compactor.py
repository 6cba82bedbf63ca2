"""Compactor: entries whose keys are unlike the others, or that their neighbours attend to.

The paper's engine weighs leverage by one half and has tiles of 128. In kvpress the weight is the
evicted share, with smoothing and tiles of 256. It draws from torch's generator: call
`torch.manual_seed` before it to compare kept sets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.errors import ConfigError
from ckv_core.methods.base import register
from ckv_core.methods.expected_attention import VALUE_SIZE
from ckv_core.methods.parameters import Parameter, ParameterValue, choice, integer, number
from ckv_core.methods.parts.base import RECENT, SEED, SINKS, Parameters, PerEntry, Scorer, generator
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.views import Chunk, LayerView, Observer, PromptShape
from ckv_core.methods.parts.window import KERNEL, smooth

_FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class NonCausalAttention:
    """Attention that an entry gets from all queries of its tile, summed, per query head.

    Tiles are counted after the first `sinks` tokens and end before the last `recent`. Logits are
    not scaled. A last tile that is not full counts as if each missing query attended equally to
    all; its missing entries draw attention as entries of logit 0 where `attended`, as kvpress has
    it, else none.

    The sums come first, then the queries of a tile whose last entries are not read yet.
    """

    tile: int
    sinks: int
    recent: int
    attended: bool
    kind: ClassVar[str] = "attention within tiles"

    def size(self, query_heads: int, head_dim: int, prompt_len: int) -> tuple[int, ...]:
        return query_heads, prompt_len + self.tile * head_dim

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        heads, tokens, head_dim = chunk.queries.shape
        prompt_len = statistic.shape[1] - self.tile * head_dim
        held = statistic[:, prompt_len:].view(heads, self.tile, head_dim)
        end = prompt_len - self.recent
        first = max(chunk.start - self.sinks, 0) // self.tile * self.tile + self.sinks
        for start in range(first, min(chunk.start + tokens, end), self.tile):
            stop = min(start + self.tile, end)
            new = slice(max(start, chunk.start), min(stop, chunk.start + tokens))
            own = chunk.queries[:, new.start - chunk.start : new.stop - chunk.start]
            held[:, new.start - start : new.stop - start] = own
            if new.start < new.stop == stop:
                sums = statistic[:, start:stop]
                self._attend(sums, held[:, : stop - start], chunk.keys[:, start:stop])

    def _attend(self, sums: Tensor, queries: Tensor, keys: Tensor) -> None:
        """The attention of one tile's queries [query_heads, size, dim] to its keys."""
        kv_heads, size, _ = keys.shape
        missing = self.tile - size
        for own, grouped, key in zip(
            sums.view(kv_heads, -1, size),  # writes into the statistic
            queries.reshape(kv_heads, -1, *queries.shape[1:]),
            keys.float(),
            strict=True,
        ):
            logits = grouped @ key.T
            if self.attended:
                logits = torch.nn.functional.pad(logits, (0, missing))
            own.add_(logits.softmax(-1)[..., :size].sum(1) + missing / self.tile)

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        group = shape.query_heads // shape.kv_heads
        tile = min(self.tile, shape.prompt_len)
        return _FLOAT * tile * (4 * group * self.tile + shape.kv_heads * shape.head_dim)


_RATIO = "ratio"
_RIDGE = 0.01


def _blend(text: str) -> ParameterValue:
    try:
        return _RATIO if text == _RATIO else number("blend", 0.5, (0.0, 100.0)).parse(text)
    except ConfigError:
        message = f"blend must be a number from 0 to 100, or {_RATIO!r}; got {text!r}."
        raise ConfigError(message) from None


BLEND = Parameter(
    name="blend",
    help="Compactor: weight of the keys' leverage beside the attention; 'ratio' (kvpress) is the "
    "share of the prompt that is evicted.",
    default=0.5,
    kvpress=_RATIO,
    parse=_blend,
)
SKETCH = integer("sketch", 48, (0, 1024)).means(
    "Compactor: dimensions that random numbers mix keys into before their leverage is computed; "
    "0 takes the keys themselves."
)
DRAWN = choice("drawn", ("apart", "in_turn"), kvpress="in_turn").means(
    "Compactor: each layer and KV head draws its own numbers (apart), or all use one "
    "generator (in_turn, kvpress after torch.manual_seed)."
)
TILE = integer("tile", 128, (1, 1024), kvpress=256).means(
    "Compactor: tokens that attend to each other, to later ones too."
)
PAD = choice("pad", ("masked", "attended"), kvpress="attended").means(
    "Compactor: what fills up the last tile is masked, or attended to with a logit of 0 (kvpress)."
)
COMPACTOR_KERNEL = KERNEL.but(default=1, kvpress=3)
COMPACTOR_VALUE_SIZE = VALUE_SIZE.but(default="off", kvpress="on")


class Outliers(Scorer):
    """Attention within tiles plus `blend` times leverage, each standardised over the layer."""

    parameters = (
        BLEND,
        SKETCH,
        SEED,
        DRAWN,
        TILE,
        PAD,
        COMPACTOR_KERNEL,
        COMPACTOR_VALUE_SIZE,
        SINKS.but(default=8),
        RECENT.but(default=4),
    )
    query_aware = False
    work = PerEntry(keys=6, head_dim=10)

    def key(self, parameters: Parameters) -> tuple[ParameterValue, ...]:
        by_budget = (parameters["budget"],) if parameters["blend"] == _RATIO else ()
        return (*super().key(parameters), *by_budget)

    def observes(self, parameters: Parameters) -> tuple[Observer, ...]:
        tile, sinks, recent = (int(parameters[key]) for key in ("tile", "sinks", "recent"))
        return (NonCausalAttention(tile, sinks, recent, parameters["pad"] == "attended"),)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        kv_heads, entries = view.keys.shape[:2]
        inner = slice(int(parameters["sinks"]), entries - int(parameters["recent"]))
        blend = parameters["blend"]
        if blend == _RATIO:
            blend = 1 - int(parameters["budget"]) / entries
        (observer,) = self.observes(parameters)
        scores = view.keys.new_zeros(kv_heads, entries, dtype=torch.float32)
        scores[:, inner] = _neighbours(view, observer, inner, parameters)
        scores[:, inner] += float(blend) * _unlike(view, inner, parameters)
        return scores


class Leverage(Scorer):
    """Leverage of keys before RoPE, standardised over the layer."""

    parameters = (SKETCH, SEED, DRAWN)
    query_aware = False
    turns_keys = True
    work = PerEntry(keys=6, head_dim=10)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        return _unlike(view, slice(0, view.keys.shape[1]), parameters)


class Neighbours(Scorer):
    """Attention within tiles counted from the first token, standardised over the layer."""

    parameters = (TILE, PAD, COMPACTOR_KERNEL, COMPACTOR_VALUE_SIZE)
    query_aware = False
    work = PerEntry(keys=2)

    def observes(self, parameters: Parameters) -> tuple[Observer, ...]:
        tile, attended = int(parameters["tile"]), parameters["pad"] == "attended"
        return (NonCausalAttention(tile, 0, 0, attended),)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        (observer,) = self.observes(parameters)
        return _neighbours(view, observer, slice(0, view.keys.shape[1]), parameters)


def _neighbours(
    view: LayerView, observer: Observer, inner: slice, parameters: Parameters
) -> Tensor:
    """Attention within tiles, group mean, smoothed: [kv_heads, inner entries], standardised."""
    attention = view.observed(observer)[:, inner]
    attention = attention.view(view.kv_heads, -1, attention.shape[-1]).mean(1)
    if parameters["value_size"] == "on":
        values = view.values[:, inner]
        attention *= torch.linalg.vector_norm(values, dim=-1, dtype=torch.float32)
    return _standard(smooth(attention, int(parameters["kernel"]), "avg"))


def _unlike(view: LayerView, inner: slice, parameters: Parameters) -> Tensor:
    """Leverage of keys before RoPE, [kv_heads, inner entries] float32, standardised."""
    keys = view.rotary().undo(view.keys[:, inner].float(), inner.start)
    mixed = sketches(view.layer, view.kv_heads, keys.shape[-1], parameters)
    return _standard(torch.stack([_leverage(*each) for each in zip(keys, mixed, strict=True)]))


def _leverage(keys: Tensor, sketch: Tensor | None) -> Tensor:
    """x^T (X^T X + ridge)^-1 x of each key x of one head, [entries] float32."""
    rows = (keys - keys.mean(0)).double()
    rows = rows if sketch is None else rows @ sketch.to(rows)
    matrix = rows.T @ rows
    matrix.diagonal().add_(_RIDGE)
    root = torch.linalg.cholesky(matrix)
    solved: Tensor = torch.linalg.solve_triangular(root, rows.T, upper=False)
    return solved.square().sum(0).float()


def sketches(
    layer: int, kv_heads: int, width: int, parameters: Parameters
) -> Sequence[Tensor | None]:
    """[width, sketch] per KV head, of normal numbers whose products keep lengths in the mean."""
    seed, sketch = int(parameters["seed"]), int(parameters["sketch"])
    if not 0 < sketch < width:
        return [None] * kv_heads
    if parameters["drawn"] == "apart":
        own = [generator("sketch", seed, layer, head) for head in range(kv_heads)]
        drawn = [torch.randn(width, sketch, generator=each) for each in own]
    else:
        stream = torch.Generator().manual_seed(seed)
        for _ in range(layer + 1):  # the earlier layers' come before
            drawn = list(torch.randn(kv_heads, width, sketch, generator=stream))
    return [each / math.sqrt(sketch) for each in drawn]


def _standard(scores: Tensor) -> Tensor:
    """Less their mean, over their standard deviation; all heads of the layer together."""
    return (scores - scores.mean()) / scores.std().clamp(min=1e-6)


register(
    name="compactor",
    label="Compactor",
    summary="Keeps keys unlike the others, and what nearby tokens, also earlier ones, attend to.",
    source="Chari and Van Durme 2025, arXiv:2507.08143",
    scorer=Outliers(),
    press=Press(
        "CompactorPress",
        {
            "sink_size_start": "sinks",
            "sink_size_end": "recent",
            "chunk_size": "tile",
            "sketch_dimension": "sketch",
        },
    ),
)
register(
    name="leverage",
    label="Leverage",
    summary="Compactor's first half alone: keeps keys unlike the others, by leverage.",
    source="Chari and Van Durme 2025, arXiv:2507.08143",
    scorer=Leverage(),
    press=Press("LeverageScorePress", {"sketch_dimension": "sketch"}),
)
register(
    name="noncausal",
    label="Non-causal attention",
    summary="Compactor's other half: keeps what nearby tokens, also earlier ones, attend to.",
    source="Chari and Van Durme 2025, arXiv:2507.08143",
    scorer=Neighbours(),
    press=Press("NonCausalAttnPress", {"chunk_size": "tile"}),
)
