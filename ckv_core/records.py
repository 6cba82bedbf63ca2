"""Plain results that cross process and package borders: no tensor, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ckv_core.config import Scenario
from ckv_core.knobs import KnobValue

Float32Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model that served a run.

    Attributes:
        sha256: of the weights files.
        evictable_layers: indices of layers that methods may evict from; the others
            (sliding window) are left whole and counted apart.
        context_limit: tokens the model was trained for.
        dtype, device: as used, e.g. float32 and cpu.
    """

    name: str
    sha256: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    device: str
    evictable_layers: tuple[int, ...]
    context_limit: int


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

    scenario: Scenario
    token_ids: tuple[int, ...]
    compressed_tokens: int
    pieces: tuple[str, ...]
    context_tokens: tuple[int, int]

    @property
    def tokens(self) -> int:
        """Prompt length in tokens."""
        return len(self.token_ids)


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

    budget_tokens: int
    requested_entries: int
    retained_entries: int
    cache_bytes: int
    full_cache_bytes: int
    warnings: tuple[str, ...] = ()


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

    head_l1: Float32Array
    base_head_l1: Float32Array | None
    layer_hidden_l1: Float32Array
    kl: float

    @property
    def final_hidden_l1(self) -> float:
        """Cascaded L1 after the last block, before the final norm."""
        return float(self.layer_hidden_l1[-1])

    @property
    def improved_head_share(self) -> float | None:
        """Share of query heads whose L1 is below the base's; None without a base."""
        if self.base_head_l1 is None:
            return None
        valid = ~np.isnan(self.head_l1)
        if not valid.any():
            return None
        return float((self.head_l1[valid] < self.base_head_l1[valid]).mean())


@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible next token and the probability that a model gives it."""

    token_id: int
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class ForcedStep:
    """Next-token candidates at one position of the full cache's own continuation, best first."""

    reference: tuple[Candidate, ...]
    variant: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """One variant's answer to one follow-up question; agreement as in `VariantResult`."""

    question: str
    text: str
    token_ids: tuple[int, ...]
    token_texts: tuple[str, ...]
    stopped: Literal["eos", "length"]
    agreement: float | None
    first_difference: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VariantResult:
    """One variant of a run; fields fill up as the run goes on.

    Attributes:
        params: every knob by SPEC key; `budget` is the resolved number of tokens.
        retained: None for `full`, and until selection is done.
        stopped: why generation ended; None while it runs.
        agreement: share of the full cache's generated tokens that this variant reproduces
            before its first difference; None until the run is done.
        first_difference: index of the first generated token that differs; None if none does.
        answer_found: whether the reference answer occurs in the text; None without one.
        tokens_per_second: of this row in the shared batch; None until done.
        answer_scores: exact_match, token_f1 and edit_similarity of the text against the reference
            answer, 0 to 1; empty without one.
        analysis: measured arrays by the names of `quantities.QUANTITIES`.
        forced_steps: one per position of the full cache's continuation; empty if not asked for.
        follow_ups: one per follow-up question.
    """

    spec: str
    label: str
    method: str
    critical: bool
    params: Mapping[str, KnobValue] = field(default_factory=dict)
    retained: RetainedSet | None = None
    receipt: Receipt | None = None
    perturbation: Perturbation | None = None
    text: str = ""
    token_ids: tuple[int, ...] = ()
    token_texts: tuple[str, ...] = ()
    stopped: Literal["eos", "length"] | None = None
    agreement: float | None = None
    first_difference: int | None = None
    answer_found: bool | None = None
    tokens_per_second: float | None = None
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    answer_scores: Mapping[str, float] = field(default_factory=dict)
    analysis: Mapping[str, Float32Array] = field(default_factory=dict)
    forced_steps: tuple[ForcedStep, ...] = ()
    follow_ups: tuple[FollowUp, ...] = ()
