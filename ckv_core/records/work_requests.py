"""Requests to the engine beside a run: previews, and kept caches to make and to ask. No torch."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from ckv_core.errors import ConfigError, PromptError, about
from ckv_core.records.kept_caches import read_record
from ckv_core.records.run_request import (
    DTYPES,
    FULL,
    MAX_NEW_TOKENS,
    MAX_PROTECTED,
    OfRun,
    RunRequest,
    check_text,
)
from ckv_core.records.variants import VariantSpec, written_parameters

# A context ends in other tokens where a question follows, whichever it is; this one is not read.
STAND_IN = "?"
EVICTS_LATER = (
    "{label} evicts while it generates, so its state is more than what it kept of the "
    "context; keep another method."
)


Until = Literal["kept", "step", "answers"]
UNTIL: tuple[Until, ...] = get_args(Until)


@dataclass(frozen=True, kw_only=True)
class PreviewRequest(OfRun):
    """A comparison that is only looked at; it gives way to every job that is recorded."""

    until: Until = "answers"  # what comes last: kept sets, figures of the first step, or texts


@dataclass(frozen=True, kw_only=True)
class KeepRequest(OfRun):
    """Compress the context of `run` by its one variant, and keep the cache in a file."""

    path: str  # of the file, where none is yet

    def comparison(self) -> RunRequest:
        """Return a comparison that compresses the context alone; CkvError if there is none."""
        comparison = replace(
            self.run,
            scenario="context-only",
            question=self.run.question if self.run.question.strip() else STAND_IN,
            analysis=(),
            follow_ups=(),
            repeats="",
            time=False,
            reference=False,
        )
        if len(comparison.specs) != 1 or comparison.own_indices:
            raise ConfigError("A cache is kept of one method with a SPEC; name one.")
        (spec,) = comparison.validate()
        if spec.policy is not None:
            raise ConfigError(EVICTS_LATER.format(label=spec.label))
        return comparison


# Labels of the rows of a `WhyRequest`.
ALL_HEADS, LAYERS, LAYER, KV_HEAD = "all heads", "layers {}-{}", "layer {}", "KV head {}"
NEIGHBOURS, CONTROL = "neighbours", "random entries {}"
CONTROLS = 5


@dataclass(frozen=True, kw_only=True)
class WhyRequest(OfRun):
    """Put evicted entries of the context of `run` back, and see which bring the answer back."""

    variant: str  # SPEC with its budget
    # Passages that hold the answer; without any, the sentences in which the expected answer stands.
    evidence: tuple[str, ...] = ()

    def comparison(self) -> RunRequest:
        """The full cache beside the variant; CkvError where nothing can be put back."""
        own, run = written_parameters(self.variant), self.run
        comparison = replace(
            run,
            variants=tuple(dict.fromkeys((FULL, self.variant))),
            budgets=() if "budget" in own else run.budgets[:1],
            alphas=() if "alpha" in own else run.alphas[:1],
            places=(),
            own_indices=(),
            analysis=(),
            follow_ups=(),
            repeats="",
            time=False,
            reference=True,
        )
        if not self.run.answer.strip():
            raise ConfigError("Give the expected answer; without it nothing can be brought back.")
        if len(self.evidence) > MAX_PROTECTED:
            raise ConfigError(f"Name up to {MAX_PROTECTED} passages of evidence.")
        for text in self.evidence:
            check_text("evidence", text)
        *_, spec = comparison.validate()
        if not spec.method.evicts or spec.policy is not None:
            raise ConfigError(
                f"{spec.label} does not evict the prompt once and for all; name another method."
            )
        return comparison


@dataclass(frozen=True, kw_only=True)
class AskRequest:
    """Answer a question from a kept cache."""

    path: str  # of its file
    question: str
    model: str  # that made it
    device: str = "auto"
    dtype: str = "auto"
    max_new_tokens: int = 64
    ignore_eos: bool = False  # go on after the end-of-sequence token

    def validate(self) -> None:
        """PromptError for the question, ConfigError for the number of tokens."""
        with about("question"):
            check_text("question", self.question)
            if not self.question.strip():
                raise PromptError("The question is empty; write one.")
        with about("max_new_tokens"):
            if not 1 <= self.max_new_tokens <= MAX_NEW_TOKENS:
                raise ConfigError(f"New tokens must be from 1 to {MAX_NEW_TOKENS}.")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}; got {self.dtype!r}.")


# All that an engine works on.
WorkRequest = RunRequest | PreviewRequest | KeepRequest | WhyRequest | AskRequest


def parts_of(request: WorkRequest) -> list[object]:
    """Methods, selectors, policies and stores of its variants; of a kept cache the variant's.

    CkvError where the cache cannot be read.
    """
    if isinstance(request, AskRequest):
        return [*VariantSpec.parse(read_record(Path(request.path)).spec).parts]
    run = request.run if isinstance(request, OfRun) else request
    return [part for spec in run.specs for part in spec.parts]
