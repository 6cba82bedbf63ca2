"""Events of a run, and what they fold to: no tensor, no torch.

The command line, the recorder and the pages all hold a `RunResult`, whole or still growing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

from ckv_core.base.checked import Checked, Plain, many, require
from ckv_core.errors import CkvError
from ckv_core.methods.parameters import ParameterValue
from ckv_core.records.external_selection import MAX_VARIANTS
from ckv_core.records.records import (
    Float32Array,
    FollowUp,
    ForcedStep,
    HeldSeries,
    Memory,
    Milliseconds,
    ModelInfo,
    Perturbation,
    PromptInfo,
    Receipt,
    RetainedSet,
    RoundingFloor,
    SampledText,
    Timed,
    VariantMemory,
    VariantResult,
    Versions,
)
from ckv_core.records.run_request import MAX_SWEEP_POINTS, Flag, Kind

Stage = Literal["load", "prefill", "score", "select", "decode", "analyse", "time"]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress event says where the run is.

    Attributes:
        fraction: of this stage, 0 to 1; None where the size is unknown.
        detail: one line, e.g. `layer 12 of 30`.
    """

    stage: Stage
    fraction: float | None
    detail: str


@dataclass(frozen=True, slots=True)
class RunPrepared:
    """Model loaded, prompt tokenised, variants parsed; nothing computed yet.

    Attributes:
        memory: the estimate in bytes: prefill_peak, cache, variants, total, available.
    """

    model: ModelInfo
    prompt: PromptInfo
    variants: tuple[VariantResult, ...]
    environment: Mapping[str, str]
    kind: Kind = "compare"
    memory: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VariantSelected:
    index: int
    params: Mapping[str, ParameterValue]
    retained: RetainedSet | None
    receipt: Receipt
    timings_ms: Mapping[str, float]
    memory: VariantMemory | None = None


@dataclass(frozen=True, slots=True)
class VariantsChose:
    """What all variants keep, before their caches are made; a preview alone sends it.

    Attributes:
        retained: one per variant; None for the full cache.
    """

    retained: tuple[RetainedSet | None, ...]


@dataclass(frozen=True, slots=True)
class VariantMeasured:
    index: int
    perturbation: Perturbation


@dataclass(frozen=True, slots=True)
class FloorMeasured:
    floor: RoundingFloor


@dataclass(frozen=True, slots=True)
class VariantAnalysed:
    """More arrays of one variant, joined to those it has.

    Attributes:
        analysis: by the names of `metrics.ANALYSIS_ARRAYS`.
        forced_steps, sampled_texts: None leaves those that are there.
    """

    index: int
    analysis: Mapping[str, Float32Array]
    forced_steps: tuple[ForcedStep, ...] | None = None
    sampled_texts: tuple[SampledText, ...] | None = None


@dataclass(frozen=True, slots=True)
class FollowUpsAnswered:
    """One variant's answers to the follow-up questions so far."""

    index: int
    follow_ups: tuple[FollowUp, ...]


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
    answer_scores: Mapping[str, float] = field(default_factory=dict)
    held: HeldSeries | None = None


@dataclass(frozen=True, slots=True)
class VariantTimed:
    index: int
    time: Timed


@dataclass(frozen=True, slots=True)
class VariantTook:
    """One variant has had its turn, alone with the model."""

    index: int
    memory: VariantMemory


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run is complete; milliseconds per stage.

    Attributes:
        memory: bytes, joined to the estimate: measured_peak; held, in tensors when decoding began:
            prefill, scores, kept sets, the entries of all rows; prefill_reused, of the cache
            what was taken over from the prefill of a prompt that starts alike.
    """

    timings_ms: Mapping[str, float]
    memory: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokensCounted:
    """The prompt's tokens, the one event of a job that counts them.

    Where counting failed, the numbers are 0 and `error` is a sentence.
    """

    tokens: int = 0
    compressed_tokens: int = 0
    limit: int = 0  # of the model's context
    question_tokens: int = 0  # of the compressed ones, behind the context
    error: str = ""
    for_good: bool = False  # it fails each time
    field: str = ""  # of the request, that is wrong where there is an error and it is of one
    # Of a prompt over the limit: how much of the context's beginning fits; 0 where nothing does.
    first_tokens: int = 0
    first_chars: int = 0


RunEvent = (
    Progress
    | RunPrepared
    | VariantsChose
    | VariantSelected
    | FloorMeasured
    | VariantMeasured
    | VariantAnalysed
    | FollowUpsAnswered
    | Generated
    | VariantFinished
    | VariantTimed
    | VariantTook
    | RunFinished
    | TokensCounted
)


def variant_changes(event: RunEvent) -> Iterator[tuple[int, dict[str, Any]]]:
    """Variants that an event tells of, and their new members; `analysis` joins what is there."""
    match event:
        case (
            VariantSelected()
            | VariantMeasured()
            | VariantFinished()
            | FollowUpsAnswered()
            | VariantTimed()
            | VariantTook()
        ):
            changes = {item.name: getattr(event, item.name) for item in fields(event)}
            yield changes.pop("index"), changes
        case VariantsChose():
            for index, retained in enumerate(event.retained):
                yield index, {"retained": retained}
        case VariantAnalysed():
            given = {"forced_steps": event.forced_steps, "sampled_texts": event.sampled_texts}
            known = {name: each for name, each in given.items() if each is not None}
            yield event.index, {"analysis": event.analysis, **known}
        case Generated():
            names = ("text", "token_ids", "token_texts", "stopped")
            parts = (event.texts, event.token_ids, event.token_texts, event.stopped)
            for index, each in enumerate(zip(*parts, strict=True)):
                yield index, dict(zip(names, each, strict=True))


@dataclass(slots=True)
class RunResult(Checked):
    """A run folded from its events; whole once `finished` is true.

    Attributes:
        floor: None until measured.
    """

    needed: ClassVar = ("timings_ms", "environment", "variants")

    kind: Kind = "compare"
    finished: Flag = False
    model: ModelInfo | None = None
    prompt: PromptInfo | None = None
    timings_ms: Milliseconds = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    floor: RoundingFloor | None = None
    variants: Annotated[list[VariantResult], many(MAX_SWEEP_POINTS)] = field(default_factory=list)
    environment: Versions = field(default_factory=dict)

    @property
    def takes_turns(self) -> bool:
        """Whether it left the full cache out; known once a variant has had its turn."""
        return any(v.memory and v.memory.decode_estimate is not None for v in self.variants)

    @classmethod
    def filled(cls, value: Plain, known: Plain) -> Plain:
        """Variants need a model and a prompt, and are not more than a run has."""
        variants = value["variants"]
        require(isinstance(variants, list), "an array is expected", "variants", got=variants)
        is_known = value.get("model") is not None and value.get("prompt") is not None
        most = MAX_SWEEP_POINTS if value.get("kind") == "sweep" else MAX_VARIANTS
        most = most if is_known else 0
        few = f"at most {most} values are allowed"
        require(len(variants) <= most, few, "variants", got=len(variants))
        kept = (each.get("retained") for each in variants if isinstance(each, dict))
        sets = [each for each in kept if isinstance(each, list)]
        known |= {"first_kept": sets[0] if sets else None, "kept_sets": len(sets)}
        return {"finished": True} | value

    def apply(self, event: RunEvent) -> None:
        """Take in one event; events of one run in the order in which they were sent."""
        match event:
            case RunPrepared():
                self.model, self.prompt = event.model, event.prompt
                self.variants = list(event.variants)
                self.environment = event.environment
                self.kind, self.memory = event.kind, event.memory
            case FloorMeasured():
                self.floor = event.floor
            case RunFinished():
                self.timings_ms = event.timings_ms
                self.memory = {**self.memory, **event.memory}
                self.finished = True
            case _:
                for index, changes in variant_changes(event):
                    variant = self.variants[index]
                    if "analysis" in changes:
                        changes["analysis"] = {**variant.analysis, **changes["analysis"]}
                    self.variants[index] = replace(variant, **changes)


Outcome = tuple[int, RunResult | CkvError]  # place of a request, and its result or why it has none
