"""Plain results that cross process and package borders: no tensor, no torch.

A field is declared here alone: `codec.py` writes the result JSON by it, `base/checked.py` reads
that by its type and bounds, and the database stores what is written.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ckv_core.base.checked import (
    By,
    Checked,
    Plain,
    chars,
    items,
    many,
    measured,
    require,
    whole_number,
    within,
)
from ckv_core.methods.parameters import ParameterValue
from ckv_core.records.external_selection import MAX_HEADS, MAX_LAYERS, MAX_TEXT_CHARS, MAX_TOKEN_ID
from ckv_core.records.run_request import (
    MAX_FOLLOW_UPS,
    MAX_NEW_TOKENS,
    MAX_REPEATS,
    Flag,
    LongText,
    Scenario,
)
from ckv_core.records.variants import VariantSpec

MAX_BLOCKS = 2**17  # of a prompt
MAX_BLOCK = 64  # tokens that repeat at the end of a text
LEAST_REPEATS = 3
LEAST_TOKENS = 16
MAX_SLOTS = 2**29  # layers x KV heads x prompt tokens; a mask takes a byte for each
MAX_ALL_SLOTS = 2**30  # of all variants; each keeps a bit of them
MAX_FLOAT32 = float(np.finfo(np.float32).max)
Float32Array = NDArray[np.float32]


# --- readers of members; `known` has the sizes of model and prompt --------------------------


def read_array(value: Any, sizes: tuple[int, ...], *at: int | str) -> Float32Array:
    """A float32 array; a row of NaN is null."""
    rows = enumerate(items(value, sizes[0], *at))
    if len(sizes) == 1:
        return np.array([measured(each, *at, i, most=MAX_FLOAT32) for i, each in rows], np.float32)
    array = np.full(sizes, np.nan, np.float32)
    for i, row in rows:
        if row is not None:
            array[i] = read_array(row, sizes[1:], *at, i)
    return array


def _read_analysis(value: Any, known: Plain) -> dict[str, Float32Array]:
    """Arrays of known names; sizes as the model has them, one length for all that have steps."""
    require(isinstance(value, dict), "an object is expected")
    arrays, lengths = {}, set()
    for name, rows in value.items():
        axes = known["quantities"].get(name)
        require(axes, "the name of a known quantity is expected", str(name)[:64], got=rows)
        if axes == ("steps",):
            require(isinstance(rows, list), "an array is expected", name, got=rows)
            known["steps"] = whole_number(len(rows), 0, MAX_NEW_TOKENS, name)
            lengths.add(len(rows))
        arrays[name] = read_array(rows, tuple(known[axis] for axis in axes), name)
    require(len(lengths) < 2, "one number of steps for all quantities is expected")
    return arrays


def _read_evicted(value: Any, known: Plain) -> Any:
    """Rows of step, layer, KV head and position; no entry is evicted twice."""
    steps = known["steps"]
    ends = (steps, known["layers"], known["kv_heads"], known["tokens"] + steps)
    require(isinstance(value, list), "an array is expected")
    require(len(value) <= math.prod(ends[1:]), "fewer rows are expected", got=len(value))
    rows = [
        tuple(
            whole_number(each, 0, end - 1, i, j)
            for j, (each, end) in enumerate(zip(items(row, 4, i), ends, strict=True))
        )
        for i, row in enumerate(value)
    ]
    is_ascending = all(here < there for here, there in pairwise(rows))
    require(is_ascending, "ascending rows are expected")
    is_once = len({row[1:] for row in rows}) == len(rows)
    require(is_once, "each entry is expected once")
    return np.array(rows, "<u4").tobytes()


def _read_retained(value: Any, known: Plain) -> "RetainedSet | None":
    """Ascending positions per layer and KV head; null in a layer that is not evictable."""
    if value is None:
        return None
    heads, end = known["kv_heads"], known["compressed_tokens"]
    mask = np.ones((known["layers"], heads, end), np.bool_)
    for layer, row in enumerate(items(value, known["layers"])):
        if layer not in known["evictable"]:
            require(row is None, "null is expected, as it is not evictable", layer, got=row)
            continue
        for head, kept in enumerate(items(row, heads, layer)):
            mask[layer, head] = False
            mask[layer, head, list(_ascending(kept, end, layer, head))] = True
    return RetainedSet.from_mask(mask)


def _ascending(value: Any, end: int, *at: int | str) -> tuple[int, ...]:
    """Whole numbers from 0 below an end, each above the one before."""
    is_short = isinstance(value, list) and len(value) <= end
    require(is_short, f"an array of at most {end} values is expected", *at, got=value)
    for place, each in enumerate(value):
        if type(each) is not int or not 0 <= each < end:
            whole_number(each, 0, end - 1, *at, place)
    is_ascending = all(left < right for left, right in pairwise(value))
    require(is_ascending, "an ascending array is expected", *at, got=value)
    return tuple(value)


def _read_setting(value: Any, _: Plain) -> ParameterValue:
    if isinstance(value, str):
        is_sound = len(value) <= 200 and not re.search("[\ud800-\udfff]", value)
    else:
        is_sound = type(value) is int and abs(value) <= 2**53
        is_sound |= isinstance(value, float) and math.isfinite(value)
    require(is_sound, "a finite number, or text of at most 200 characters, is expected")
    return value  # type: ignore[no-any-return]  # checked


# --- types of members -----------------------------------------------------------------------

Count = Annotated[int, within(0, 2**62)]
TokenId = Annotated[int, within(0, MAX_TOKEN_ID)]
Share = Annotated[float, within(0, 1)]
Name = Annotated[str, chars(500)]
Word = Annotated[str, chars(32, r"[\w.:-]{1,32}")]
TokenIds = Annotated[tuple[TokenId, ...], many(MAX_NEW_TOKENS)]
TokenTexts = Annotated[tuple[LongText, ...], many(MAX_NEW_TOKENS)]
Step = Annotated[int, within(0, MAX_NEW_TOKENS)]
Stop = Literal["eos", "length"]
# Of one generation. cut: the limit of new tokens ended it before an answer, so that it is neither
# right nor wrong, and neither is failed; none: no answer is expected.
Outcome = Literal["answered", "missed", "cut", "failed", "none"]
_IS_RIGHT: dict[Outcome | None, bool] = {"answered": True, "missed": False}
Setting = Annotated[ParameterValue, By(_read_setting)]
Params = Annotated[Mapping[str, Setting], many(64)]
Duration = Annotated[float, within(0)]  # milliseconds
Milliseconds = Annotated[Mapping[str, Duration], many(64)]
Memory = Annotated[Mapping[str, Count], many(64)]
Versions = Annotated[Mapping[str, Name], many(64)]
Measured = Annotated[float, By(lambda value, _: measured(value))]
Heads = Annotated[
    Float32Array,
    By(lambda value, known: read_array(value, (known["layers"], known["query_heads"]))),
]
Layers = Annotated[Float32Array, By(lambda value, known: read_array(value, (known["layers"],)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo(Checked):
    """The model that served a run.

    Attributes:
        sha256: of the weights files.
        evictable_layers: indices of layers that methods may evict from; the others
            (sliding window) are not evicted and counted apart.
        context_limit: tokens the model was trained for.
        dtype, device: as used, e.g. float32 and cpu.
    """

    name: Name
    sha256: Annotated[str, chars(200)]
    layers: Annotated[int, within(1, MAX_LAYERS)]
    query_heads: Annotated[int, within(1, MAX_HEADS)]
    kv_heads: Annotated[int, within(1, MAX_HEADS)]
    head_dim: Annotated[int, within(1, 65_536)]
    dtype: Word
    device: Word
    evictable_layers: Annotated[tuple[int, ...], many(MAX_LAYERS)]
    context_limit: Count

    @classmethod
    def filled(cls, value: Plain, known: Plain) -> Plain:
        """Files made elsewhere do not list the layers: those of the first kept set, or all."""
        layers = value.get("layers")
        every = [0] * min(layers if isinstance(layers, int) else 0, MAX_LAYERS)
        kept = known.get("first_kept") or every
        listed = [layer for layer, row in enumerate(kept) if row is not None]
        return {"context_limit": 0, "evictable_layers": listed} | value

    def checked(self, value: Plain, known: Plain) -> "ModelInfo":
        """Its sizes are known from here on."""
        heads = self.query_heads
        is_divisor = heads % self.kv_heads == 0
        require(is_divisor, f"a divisor of {heads} is expected", "kv_heads", got=self.kv_heads)
        _ascending(list(value["evictable_layers"]), self.layers, "evictable_layers")
        known |= {name: getattr(self, name) for name in ("layers", "query_heads", "kv_heads")}
        known["evictable"] = self.evictable_layers
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInfo(Checked):
    """The tokenised prompt.

    Attributes:
        tokens: all prompt tokens, question included.
        compressed_tokens: the first of them, from which methods evict (all in `regular`).
        token_ids: [tokens].
        pieces: [tokens] text of each token; joined they give the whole rendered prompt.
        context_tokens: (first, end) token range of the user's own context in the prompt.
    """

    derived: ClassVar = ("tokens",)

    scenario: Scenario
    token_ids: Annotated[tuple[TokenId, ...], many(MAX_TEXT_CHARS)]
    compressed_tokens: Count
    pieces: Annotated[tuple[LongText, ...], many(MAX_TEXT_CHARS)]
    context_tokens: tuple[Count, Count]

    @classmethod
    def filled(cls, value: Plain, known: Plain) -> Plain:
        """Files made elsewhere lack the texts of the tokens and the context's range."""
        del known
        ids = value.get("token_ids")
        texts = [""] * (len(ids) if isinstance(ids, list) else 0)
        return {"pieces": texts, "context_tokens": [0, value.get("compressed_tokens")]} | value

    def checked(self, value: Plain, known: Plain) -> "PromptInfo":
        """Its sizes are known from here on; no mask of it takes too much memory."""
        tokens, compressed = self.tokens, self.compressed_tokens
        whole_number(value.get("tokens"), tokens, tokens, "tokens")
        whole_number(compressed, 0, tokens, "compressed_tokens")
        items(value["pieces"], tokens, "pieces")
        whole_number(self.context_tokens[0], 0, tokens, "context_tokens", 0)
        whole_number(self.context_tokens[1], *(self.context_tokens[0], tokens, "context_tokens", 1))
        slots = known.get("layers", 0) * known.get("kv_heads", 0) * compressed
        is_small = slots <= MAX_SLOTS and slots * known.get("kept_sets", 0) <= MAX_ALL_SLOTS
        few = f"layers x KV heads x compressed tokens of at most {MAX_SLOTS}"
        few += f", {MAX_ALL_SLOTS} in all variants, are expected"
        require(is_small, few, "compressed_tokens", got=compressed)
        known |= {"tokens": tokens, "compressed_tokens": compressed}  # so a mask is made of these
        return self

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def question(self) -> range:
        """Positions of the compressed prompt behind the context: the question and the template."""
        return range(self.context_tokens[1], self.compressed_tokens)


@dataclass(frozen=True, slots=True)
class RetainedSet:
    """Which prompt entries one variant kept: one bit per (layer, KV head, position).

    Attributes:
        bits: `numpy.packbits(mask, axis=-1)` in C order: every (layer, head) row starts on a
            byte border; the first position is the highest bit.
        layers, kv_heads, positions: shape of the mask; positions = compressed_tokens.
            Layers that are not evictable are all ones.
    """

    bits: bytes
    layers: int
    kv_heads: int
    positions: int

    @classmethod
    def from_mask(cls, mask: NDArray[np.bool_]) -> "RetainedSet":
        """Pack a mask [layers, kv_heads, positions]."""
        layers, kv_heads, positions = mask.shape
        return cls(np.packbits(mask, axis=-1).tobytes(), layers, kv_heads, positions)

    def mask(self) -> NDArray[np.bool_]:
        """Unpack to [layers, kv_heads, positions]."""
        rows = np.frombuffer(self.bits, np.uint8).reshape(self.layers, self.kv_heads, -1)
        return np.unpackbits(rows, axis=-1, count=self.positions).astype(np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSeries(Checked):
    """The entries that a variant held while it generated and evicted, token by token.

    Attributes:
        entries: of prompt, question and generated tokens, at the choice of each generated token.
        cache_bytes: of the tensors that held them.
        evicted: rows (step, layer, KV head, position) of little-endian uint32, in that order;
            step t is after the t-th generated token was fed. What selection evicted of the prompt
            is not among them.
    """

    entries: Annotated[tuple[Count, ...], many(MAX_NEW_TOKENS, 1)]
    cache_bytes: Annotated[tuple[Count, ...], many(MAX_NEW_TOKENS)]
    evicted: Annotated[bytes, By(_read_evicted)]

    @classmethod
    def filled(cls, value: Plain, known: Plain) -> Plain:
        """The number of steps is known before the evictions are read."""
        entries = value.get("entries")
        known["steps"] = len(entries) if isinstance(entries, list) else 0
        return value

    def checked(self, value: Plain, known: Plain) -> "HeldSeries":
        """Refused unless there are as many bytes as entries."""
        del known
        items(value["cache_bytes"], len(self.entries), "cache_bytes")
        return self

    def evictions(self) -> NDArray[np.uint32]:
        """[entries evicted, 4]: step, layer, KV head and position of each."""
        return np.frombuffer(self.evicted, "<u4").reshape(-1, 4)

    def mask(self, retained: RetainedSet, tokens: int, step: int) -> NDArray[np.bool_]:
        """Mark the first `tokens` that were held after a step, [layers, kv_heads, tokens].

        Args:
            retained: what selection kept.
            tokens: read and generated by then; those after the compressed prompt began as held.
            step: 0 for before the first generated token was fed.
        """
        after = tokens - retained.positions
        held = np.pad(retained.mask(), ((0, 0), (0, 0), (0, after)), constant_values=True)
        steps, layers, heads, positions = self.evictions().T
        gone = steps <= step
        held[layers[gone], heads[gone], positions[gone]] = False
        return held


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A receipt says what the budget requests of the cache, and what the cache holds.

    Attributes:
        budget_tokens: requested entries per KV head (mean), whole prompt for `full`.
        requested_entries: evictable layers x KV heads x min(budget, compressed prompt).
        retained_entries: entries kept in evictable layers, counted from the kept sets.
        cache_bytes: bytes of the tensors that hold this variant's prompt entries.
        read_bytes: of those that a step of one token reads; None in older files.
        full_cache_bytes: of the full cache.
        warnings: sentences for the reader, e.g. that nothing was evicted.
    """

    budget_tokens: Count
    requested_entries: Count
    retained_entries: Count
    cache_bytes: Count
    full_cache_bytes: Count
    read_bytes: Count | None = None
    warnings: Annotated[tuple[Annotated[str, chars(2000)], ...], many(100)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantMemory(Checked):
    """The memory of one variant, in bytes; None where nothing was measured or computed.

    Attributes:
        prefill_peak, decode_peak: measured above the model, until its cache is compacted and from
            then on; of a run without the full cache, whose variants take turns.
        prefill_estimate, decode_estimate: the same as computed before.
        read, held: of a variant that reads the prompt in blocks, the tokens read and what evictable
            layers hold at the end of each.
    """

    prefill_peak: Count | None = None
    decode_peak: Count | None = None
    prefill_estimate: Count | None = None
    decode_estimate: Count | None = None
    read: Annotated[tuple[Count, ...], many(MAX_BLOCKS)] = ()
    held: Annotated[tuple[Count, ...], many(MAX_BLOCKS)] = ()

    def checked(self, value: Plain, known: Plain) -> Self:
        """Refused unless something is held at the end of each block."""
        del known
        items(value.get("held") or [], len(self.read), "held")
        return self


class _Cascaded(Checked):
    """A record that holds the cascaded L1 after each block."""

    __slots__ = ()
    derived: ClassVar[tuple[str, ...]] = ("final_hidden_l1",)
    layer_hidden_l1: Float32Array

    def checked(self, value: Plain, known: Plain) -> Self:
        """Refused where the final L1 in the file is another one."""
        del known
        name, final = "final_hidden_l1", self.final_hidden_l1
        there = value.get(name)
        is_last = there is None or np.isclose(
            measured(there, name, most=MAX_FLOAT32), final, rtol=1e-3, equal_nan=True
        )
        require(is_last, "the last value of layer_hidden_l1 is expected", name, got=there)
        return self

    @property
    def final_hidden_l1(self) -> float:
        """Cascaded L1 after the last block, before the final norm."""
        return float(self.layer_hidden_l1[-1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Perturbation(_Cascaded):
    """A record of how far eviction moved the outputs at the first decoding step (n = one step).

    Attributes:
        head_l1: [layers, query_heads] isolated head L1, ||(A - A')V W_O||_1; NaN in layers
            that are not evictable.
        base_head_l1: the same of the variant without CriticalKV; None if it has none.
        layer_hidden_l1: [layers] cascaded L1 of the residual stream after each block.
        kl: KL(full || variant) of the next-token distributions, nats.
    """

    derived = ("improved_head_share", "final_hidden_l1", "worst_head_l1")

    head_l1: Heads
    base_head_l1: Heads | None = None
    layer_hidden_l1: Layers
    kl: Measured = math.nan

    @property
    def worst_head_l1(self) -> float | None:
        """Head L1 of the query head that moved most; None where none is known."""
        known = self.head_l1[~np.isnan(self.head_l1)]
        return float(known.max()) if known.size else None

    @property
    def improved_head_share(self) -> float | None:
        """Share of query heads whose L1 is below the base's; None without a base."""
        if self.base_head_l1 is None or not self.compared_heads:
            return None
        return int((self.head_l1 < self.base_head_l1).sum()) / self.compared_heads

    @property
    def compared_heads(self) -> int:
        """Query heads whose L1 is known here and of the base; 0 without a base."""
        if self.base_head_l1 is None:
            return 0
        return int((~(np.isnan(self.head_l1) | np.isnan(self.base_head_l1))).sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundingFloor(_Cascaded):
    """A record of how far rounding alone moves a run's first decoding step.

    Of the full cache whose attention is summed in another order, against the full cache: what
    differs by no more than this may be nothing but rounding in the run's own dtype.

    Attributes:
        layer_hidden_l1: [layers], as of a `Perturbation`.
        kl: as of a `Perturbation`.
    """

    layer_hidden_l1: Layers
    kl: Annotated[float, within(0)]

    def checked(self, value: Plain, known: Plain) -> Self:
        """Every layer has a finite floor, and the final one is the last."""
        for layer, each in enumerate(self.layer_hidden_l1.tolist()):
            is_floor = 0 <= each < math.inf
            require(is_floor, "a number from 0 is expected", "layer_hidden_l1", layer, got=each)
        return _Cascaded.checked(self, value, known)


class Candidate(NamedTuple):
    """One possible next token and the probability that a model gives it."""

    token_id: TokenId
    text: Annotated[str, chars(10_000)]
    probability: Share


Candidates = Annotated[tuple[Candidate, ...], many(64)]


@dataclass(frozen=True, slots=True)
class ForcedStep:
    """Next-token candidates at one position of the full cache's own continuation, best first."""

    reference: Candidates
    variant: Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp(Checked):
    """One variant's answer to one follow-up question; agreement as in `VariantResult`."""

    question: LongText
    text: LongText
    token_ids: TokenIds
    token_texts: TokenTexts
    stopped: Stop
    agreement: Share | None = None
    first_difference: Step | None = None

    def checked(self, value: Plain, known: Plain) -> "FollowUp":
        """A text for each token."""
        del known
        items(value["token_texts"], len(self.token_ids), "token_texts")
        return self


@dataclass(frozen=True, slots=True)
class SampledText:
    """One text of a variant whose tokens were drawn; `answer_found` as in `VariantResult`."""

    derived: ClassVar = ("outcome",)

    text: LongText
    stopped: Stop
    answer_found: Flag | None = None

    @property
    def outcome(self) -> Outcome:
        return "none" if self.answer_found is None else judged(self.answer_found, self.stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Checked):
    """The times of one variant by itself, when nothing else runs in its process.

    Attributes:
        added_first_token_ms: what it adds to reading the prompt: scores, choice and copies (median
            of ROUNDS), what it gathers while the prompt is read, and further passes (once).
        step_ms: of a decoding step at batch 1: lower quartile, median, upper quartile.
        steps: how many that are.
        tokens_per_s: by batch, of rows with caches of their own; the last is the largest that fits.
        bound: what ends the batches there: memory, or the time that a step may take.
        others: share of the machine's processors that other processes took meanwhile.
    """

    added_first_token_ms: Duration
    step_ms: Annotated[tuple[Duration, ...], many(3, 3)]
    steps: Annotated[int, within(1, 10_000)]
    tokens_per_s: Annotated[Mapping[str, Annotated[float, within(0)]], many(8, 1)]
    bound: Literal["memory", "time"]
    others: Share

    def checked(self, value: Plain, known: Plain) -> "Timed":
        """Quartiles rise, and the first batch is 1."""
        del value, known
        require(
            self.step_ms == tuple(sorted(self.step_ms)), "rising quartiles are expected", "step_ms"
        )
        is_size = all(re.fullmatch("[1-9][0-9]{0,6}", each, re.ASCII) for each in self.tokens_per_s)
        require(is_size and "1" in self.tokens_per_s, "batches from 1 are expected", "tokens_per_s")
        return self

    @property
    def batches(self) -> list[int]:
        """Rows that were decoded at once, rising."""
        return sorted(map(int, self.tokens_per_s))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VariantResult(Checked):
    """One variant of a run; fields fill up as the run goes on.

    Attributes:
        params: every parameter by SPEC key; `budget` is the resolved number of tokens.
        retained: None for `full`, and until selection is done.
        stopped: why generation ended; None while it runs.
        agreement: share of the full cache's generated tokens that this variant reproduces
            before its first difference; None until the run is done.
        first_difference: index of the first generated token that differs; None if none does.
        answer_found: whether the expected answer occurs in the text, also in one that was cut;
            None without one. What it means says `outcome`.
        answer_scores: exact_match, token_f1 and edit_similarity of the text against the reference
            answer, 0 to 1; empty without one.
        analysis: measured arrays by the names of `metrics.ANALYSIS_ARRAYS`.
        forced_steps: one per position of the full cache's continuation; empty if not requested.
        follow_ups: one per follow-up question.
        sampled_texts: in the order of their draws.
        held: None where nothing is evicted while it generates.
        time: None where it was not timed.
        memory: None where nothing is known of this variant alone.
        failure: why there is no whole text, of a run that failed; else empty.
    """

    derived: ClassVar = ("outcome", "loops")
    needed: ClassVar = ("params", "text", "token_ids", "timings_ms")

    spec: Annotated[str, chars(1000)]
    label: Annotated[str, chars(200)]
    method: Annotated[str, chars(64, "[a-z0-9_]{1,64}")]
    critical: Flag
    params: Params = field(default_factory=dict)
    retained: Annotated[RetainedSet | None, By(_read_retained)] = None
    receipt: Receipt | None = None
    perturbation: Perturbation | None = None
    text: LongText = ""
    token_ids: TokenIds = ()
    token_texts: TokenTexts = ()
    stopped: Stop | None = None
    agreement: Share | None = None
    first_difference: Step | None = None
    answer_found: Flag | None = None
    timings_ms: Milliseconds = field(default_factory=dict)
    answer_scores: Annotated[Mapping[str, Share], many(16)] = field(default_factory=dict)
    analysis: Annotated[Mapping[str, Float32Array], By(_read_analysis)] = field(
        default_factory=dict
    )
    forced_steps: Annotated[tuple[ForcedStep, ...], many(MAX_NEW_TOKENS)] = ()
    follow_ups: Annotated[tuple[FollowUp, ...], many(MAX_FOLLOW_UPS)] = ()
    sampled_texts: Annotated[tuple[SampledText, ...], many(MAX_REPEATS)] = ()
    held: HeldSeries | None = None
    time: Timed | None = None
    memory: VariantMemory | None = None
    failure: Annotated[str, chars(10_000)] = ""

    @classmethod
    def of(cls, spec: VariantSpec, text: str = "") -> "VariantResult":
        """A variant that has not run; `text` is its SPEC where that is written in another way."""
        return cls(
            spec=text or spec.spec,
            label=spec.label,
            method=spec.method.name,
            critical=spec.critical,
            params=spec.params,
        )

    @classmethod
    def filled(cls, value: Plain, known: Plain) -> Plain:
        """Nothing was measured of the full cache; a text cut before an answer is null in files."""
        known["steps"] = 0
        moved = value.get("perturbation")
        if isinstance(moved, dict) and moved.get("head_l1") is None:
            value = value | {"perturbation": None}
        if value.get("outcome") == "cut" and value.get("answer_found") is None:
            value = value | {"answer_found": False}
        return value

    def checked(self, value: Plain, known: Plain) -> "VariantResult":
        """A text for each token; as many forced steps as the measured arrays have, or none."""
        if self.token_texts:  # which older files lack
            items(value["token_texts"], len(self.token_ids), "token_texts")
        measured_steps = {
            len(array)
            for name, array in self.analysis.items()
            if known["quantities"][name] == ("steps",)
        }
        steps = len(self.forced_steps)
        is_same = not steps or measured_steps <= {steps}
        require(is_same, "one step for each in analysis is expected", "forced_steps", got=steps)
        return self

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the generation; None until it is over."""
        if self.answer_found is not None:
            return judged(self.answer_found, self.stopped)
        if self.failure:
            return "failed"
        return None if self.stopped is None else "none"

    @property
    def is_right(self) -> bool | None:
        """Whether it answers; None where that is unknown, as of a cut text."""
        return _IS_RIGHT.get(self.outcome)

    @property
    def loops(self) -> bool:
        """Whether the limit cut a text that repeats itself; a higher limit would not help."""
        return self.stopped == "length" and loops(self.token_ids)


def judged(found: bool, stopped: Stop | None) -> Outcome:
    """The outcome of a text in which the expected answer is, or is not."""
    return "answered" if found else "cut" if stopped == "length" else "missed"


def loops(token_ids: Sequence[int]) -> bool:
    """Whether the last tokens are one block over and over: no higher limit would bring an answer.

    A block of up to 64 tokens, at least three times in a row and over at least 16 tokens; the
    last time may be broken off.
    """
    count = len(token_ids)
    for size in range(1, min(MAX_BLOCK, count // LEAST_REPEATS) + 1):
        needed = max(LEAST_REPEATS * size, LEAST_TOKENS)
        if count >= needed and all(
            token_ids[at] == token_ids[at - size]
            for at in range(count - 1, count - 1 - (needed - size), -1)
        ):
            return True
    return False
