"""Plain results that cross process and package borders: no tensor, no torch.

A field is declared here alone: `codec.py` writes and reads the result JSON by its type and the
bounds in it, the database stores what that writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ckv_core.methods.parameters import ParameterValue
from ckv_core.request.compare_request import (
    MAX_FOLLOW_UPS,
    MAX_NEW_TOKENS,
    MAX_TEXT_CHARS,
    Scenario,
)
from ckv_core.results.loops import loops
from ckv_core.runtime.bounds import Axes, Chars, Many, Measured, Needed, Within

MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_TOKEN_ID = 2**31 - 1
Float32Array = NDArray[np.float32]
Count = Annotated[int, Within(0, 2**62)]
TokenId = Annotated[int, Within(0, MAX_TOKEN_ID)]
Share = Annotated[float, Within(0, 1)]
Name = Annotated[str, Chars(500)]
Word = Annotated[str, Chars(32, r"[\w.:-]{1,32}")]
LongText = Annotated[str, Chars(MAX_TEXT_CHARS)]
TokenIds = Annotated[tuple[TokenId, ...], Many(MAX_NEW_TOKENS)]
TokenTexts = Annotated[tuple[LongText, ...], Many("token_ids")]
Step = Annotated[int, Within(0, MAX_NEW_TOKENS)]
Stop = Literal["eos", "length"]
# Of one generation. cut: the limit of new tokens ended it before an answer, so that it is neither
# right nor wrong, and neither is failed; none: no answer is expected.
Outcome = Literal["answered", "missed", "cut", "failed", "none"]
_IS_RIGHT: dict[Outcome | None, bool] = {"answered": True, "missed": False}
Params = Annotated[Mapping[str, ParameterValue], Many(64), Needed()]
Milliseconds = Annotated[Mapping[str, Annotated[float, Within(0)]], Many(64), Needed()]
Memory = Annotated[Mapping[str, Count], Many(64)]
Versions = Annotated[Mapping[str, Name], Many(64), Needed()]
Heads = Annotated[Float32Array, Axes(("layers", "query_heads"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model that served a run.

    Attributes:
        sha256: of the weights files.
        evictable_layers: indices of layers that methods may evict from; the others
            (sliding window) are not evicted and counted apart.
        context_limit: tokens the model was trained for.
        dtype, device: as used, e.g. float32 and cpu.
    """

    name: Name
    sha256: Annotated[str, Chars(200)]
    layers: Annotated[int, Within(1, MAX_LAYERS)]
    query_heads: Annotated[int, Within(1, MAX_HEADS)]
    kv_heads: Annotated[int, Within(1, "query_heads")]
    head_dim: Annotated[int, Within(1, 65_536)]
    dtype: Word
    device: Word
    evictable_layers: Annotated[tuple[int, ...], Many("layers", ascending=True)]
    context_limit: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInfo:
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
    token_ids: Annotated[tuple[TokenId, ...], Many(MAX_TEXT_CHARS)]
    compressed_tokens: Annotated[int, Within(0, "token_ids")]
    pieces: Annotated[tuple[LongText, ...], Many("token_ids")]
    context_tokens: tuple[int, int]

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
class HeldSeries:
    """What a variant that evicts while it generates held, token by token, in evictable layers.

    Attributes:
        entries: of prompt, question and generated tokens, at the choice of each generated token.
        cache_bytes: of the tensors that held them.
        evicted: rows (step, layer, KV head, position) of little-endian uint32, in that order;
            step t is after the t-th generated token was fed. What selection evicted of the prompt
            is not among them.
    """

    entries: Annotated[tuple[Count, ...], Many(MAX_NEW_TOKENS)]
    cache_bytes: Annotated[tuple[Count, ...], Many("entries")]
    evicted: bytes

    def evictions(self) -> NDArray[np.uint32]:
        """[entries evicted, 4]: step, layer, KV head and position of each."""
        return np.frombuffer(self.evicted, "<u4").reshape(-1, 4)

    def mask(self, retained: RetainedSet, tokens: int, step: int) -> NDArray[np.bool_]:
        """What was held of the first `tokens` after a step, [layers, kv_heads, tokens].

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
    """What was asked of the cache and what it got.

    Attributes:
        budget_tokens: entries per KV head asked for (mean), whole prompt for `full`.
        requested_entries: evictable layers x KV heads x min(budget, compressed prompt).
        retained_entries: entries kept in evictable layers, counted from the kept sets.
        cache_bytes: bytes of the tensors that hold this variant's prompt entries.
        full_cache_bytes: the same for the full cache.
        warnings: sentences for the reader, e.g. that nothing was evicted.
    """

    budget_tokens: Count
    requested_entries: Count
    retained_entries: Count
    cache_bytes: Count
    full_cache_bytes: Count
    warnings: Annotated[tuple[Annotated[str, Chars(2000)], ...], Many(100), Needed()] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Perturbation:
    """How far eviction moved the outputs at the first decoding step (n = one step).

    Attributes:
        head_l1: [layers, query_heads] isolated head L1, ||(A - A')V W_O||_1; NaN in layers
            that are not evictable.
        base_head_l1: the same of the variant without CriticalKV; None if it has none.
        layer_hidden_l1: [layers] cascaded L1 of the residual stream after each block.
        kl: KL(full || variant) of the next-token distributions, nats.
    """

    derived: ClassVar = ("improved_head_share", "final_hidden_l1", "worst_head_l1")

    head_l1: Heads
    base_head_l1: Heads | None
    layer_hidden_l1: Annotated[Float32Array, Axes(("layers",))]
    kl: Annotated[float, Measured(1e300)]

    @property
    def final_hidden_l1(self) -> float:
        """Cascaded L1 after the last block, before the final norm."""
        return float(self.layer_hidden_l1[-1])

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
class RoundingFloor:
    """How far rounding alone moves a run's first decoding step.

    Of the full cache whose attention is summed in another order, against the full cache: what
    differs by no more than this may be nothing but rounding in the run's own dtype.

    Attributes:
        layer_hidden_l1: [layers], as of a `Perturbation`.
        kl: as of a `Perturbation`.
    """

    derived: ClassVar = ("final_hidden_l1",)

    layer_hidden_l1: Annotated[Float32Array, Axes(("layers",), low=0)]
    kl: Annotated[float, Within(0)]

    @property
    def final_hidden_l1(self) -> float:
        """After the last block, before the final norm."""
        return float(self.layer_hidden_l1[-1])


@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible next token and the probability that a model gives it."""

    token_id: TokenId
    text: Annotated[str, Chars(10_000)]
    probability: Share


Candidates = Annotated[tuple[Candidate, ...], Many(64)]


@dataclass(frozen=True, slots=True)
class ForcedStep:
    """Next-token candidates at one position of the full cache's own continuation, best first."""

    reference: Candidates
    variant: Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """One variant's answer to one follow-up question; agreement as in `VariantResult`."""

    question: LongText
    text: LongText
    token_ids: TokenIds
    token_texts: TokenTexts
    stopped: Stop
    agreement: Share | None
    first_difference: Step | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VariantResult:
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
        analysis: measured arrays by the names of `quantities.QUANTITIES`.
        forced_steps: one per position of the full cache's continuation; empty if not asked for.
        follow_ups: one per follow-up question.
        held: None where nothing is evicted while it generates.
        failure: why there is no whole text, of a run that failed; else empty.
    """

    derived: ClassVar = ("outcome", "loops")

    spec: Annotated[str, Chars(1000)]
    label: Annotated[str, Chars(200)]
    method: Annotated[str, Chars(64, "[a-z0-9_]{1,64}")]
    critical: bool
    params: Params = field(default_factory=dict)
    retained: RetainedSet | None = None
    receipt: Receipt | None = None
    perturbation: Perturbation | None = None
    text: Annotated[LongText, Needed()] = ""
    token_ids: Annotated[TokenIds, Needed()] = ()
    token_texts: TokenTexts = ()
    stopped: Stop | None = None
    agreement: Share | None = None
    first_difference: Step | None = None
    answer_found: bool | None = None
    timings_ms: Milliseconds = field(default_factory=dict)
    answer_scores: Annotated[Mapping[str, Share], Many(16)] = field(default_factory=dict)
    analysis: Mapping[str, Float32Array] = field(default_factory=dict)
    forced_steps: Annotated[tuple[ForcedStep, ...], Many(MAX_NEW_TOKENS)] = ()
    follow_ups: Annotated[tuple[FollowUp, ...], Many(MAX_FOLLOW_UPS)] = ()
    held: HeldSeries | None = None
    failure: Annotated[str, Chars(10_000)] = ""

    @property
    def outcome(self) -> Outcome | None:
        """What the generation came to; None until it is over."""
        if self.answer_found is not None:
            cut = not self.answer_found and self.stopped == "length"
            return "cut" if cut else "answered" if self.answer_found else "missed"
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
