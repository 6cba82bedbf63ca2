"""Requests to the engine beside a run: previews, and kept caches to make and to ask. No torch."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from ckv_core.errors import ConfigError, PromptError, about
from ckv_core.records.run_request import DTYPES, MAX_NEW_TOKENS, OfRun, RunRequest, check_text

# A context ends in other tokens where a question follows, whichever it is; this one is not read.
STAND_IN = "?"
EVICTS_LATER = (
    "{label} goes on evicting while it generates, so its state is more than what it kept of the "
    "context; keep another variant."
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
            time=False,
            reference=False,
        )
        if len(comparison.specs) != 1 or comparison.own_indices:
            raise ConfigError("A cache is kept of one variant with a SPEC; name one.")
        (spec,) = comparison.validate()
        if spec.policy is not None:
            raise ConfigError(EVICTS_LATER.format(label=spec.label))
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


WorkRequest = RunRequest | PreviewRequest | KeepRequest | AskRequest  # all that an engine works on
