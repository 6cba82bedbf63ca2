"""What storage hands out: plain frozen records, never rows."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ckv_core.config import CompareRequest
from ckv_core.events import RunResult
from ckv_core.records import PromptInfo

RunState = Literal["queued", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of a list of runs.

    Attributes:
        question_start: the question's first 200 characters.
        variant_specs: as parsed by the worker; as asked before that.
        prompt_tokens: None until the prompt was tokenised.
    """

    slug: str
    title: str
    question_start: str
    model_name: str
    state: RunState
    variant_specs: tuple[str, ...]
    prompt_tokens: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A saved run with all its results.

    Attributes:
        reason: why it failed or was cancelled; else empty.
        created_at, started_at, finished_at: UTC.
        result: what the events of the run fold to; partial if the run did not end well.
        owner: the user who made it; None without logins.
    """

    slug: str
    title: str
    state: RunState
    reason: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    request: CompareRequest
    result: RunResult
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPrompt:
    """The texts of a saved run and, once tokenised, their tokens."""

    context: str
    question: str
    answer: str
    tokenised: PromptInfo | None
