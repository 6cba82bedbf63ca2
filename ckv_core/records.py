"""Plain results that cross process and package borders: no tensor, no torch.

A run is a stream of events; `RunResult.apply` folds them. The command line, the recorder
and the pages all hold a `RunResult`, whole or still growing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ckv_core.config import Scenario
from ckv_core.knobs import KnobValue

Float32Array = NDArray[np.float32]
Stage = Literal["load", "prefill", "score", "select", "decode"]
STAGES: tuple[Stage, ...] = ("load", "prefill", "score", "select", "decode")


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


# --- events -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the run is.

    Attributes:
        fraction: of this stage, 0 to 1; None where the size is unknown.
        detail: one line, e.g. `layer 12 of 30`.
    """

    stage: Stage
    fraction: float | None
    detail: str


@dataclass(frozen=True, slots=True)
class RunPrepared:
    """Model loaded, prompt tokenised, variants parsed; nothing computed yet."""

    model: ModelInfo
    prompt: PromptInfo
    variants: tuple[VariantResult, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class VariantSelected:
    """One variant's kept set and receipt are known."""

    index: int
    params: Mapping[str, KnobValue]
    retained: RetainedSet | None
    receipt: Receipt
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class VariantMeasured:
    """One variant's perturbation is known."""

    index: int
    perturbation: Perturbation


@dataclass(frozen=True, slots=True)
class Generated:
    """All text so far of all variants; coalesced, so tokens may arrive several at a time.

    Attributes:
        texts, token_ids, token_texts: one per variant; token_texts joined give the text.
        stopped: one per variant; None while it runs.
    """

    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    token_texts: tuple[tuple[str, ...], ...]
    stopped: tuple[Literal["eos", "length"] | None, ...]


@dataclass(frozen=True, slots=True)
class VariantFinished:
    """Figures of one variant that need its whole generation."""

    index: int
    agreement: float | None
    first_difference: int | None
    answer_found: bool | None
    tokens_per_second: float | None
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run is complete; milliseconds per stage."""

    timings_ms: Mapping[str, float]


RunEvent = (
    Progress
    | RunPrepared
    | VariantSelected
    | VariantMeasured
    | Generated
    | VariantFinished
    | RunFinished
)


@dataclass(slots=True)
class RunResult:
    """A run folded from its events; whole once `finished` is true."""

    model: ModelInfo | None = None
    prompt: PromptInfo | None = None
    variants: list[VariantResult] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    finished: bool = False

    def apply(self, event: RunEvent) -> None:
        """Take in one event; events of one run in the order in which they were sent."""
        match event:
            case RunPrepared():
                self.model, self.prompt = event.model, event.prompt
                self.variants = list(event.variants)
                self.environment = event.environment
            case VariantSelected():
                self._update(
                    event.index,
                    params=event.params,
                    retained=event.retained,
                    receipt=event.receipt,
                    timings_ms=event.timings_ms,
                )
            case VariantMeasured():
                self._update(event.index, perturbation=event.perturbation)
            case Generated():
                for index, text in enumerate(event.texts):
                    self._update(
                        index,
                        text=text,
                        token_ids=event.token_ids[index],
                        token_texts=event.token_texts[index],
                        stopped=event.stopped[index],
                    )
            case VariantFinished():
                self._update(
                    event.index,
                    agreement=event.agreement,
                    first_difference=event.first_difference,
                    answer_found=event.answer_found,
                    tokens_per_second=event.tokens_per_second,
                    timings_ms=event.timings_ms,
                )
            case RunFinished():
                self.timings_ms = event.timings_ms
                self.finished = True
            case Progress():
                pass

    def _update(self, index: int, **changes: object) -> None:
        self.variants[index] = replace(self.variants[index], **changes)  # type: ignore[arg-type]
