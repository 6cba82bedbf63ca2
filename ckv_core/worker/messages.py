"""Frozen messages between the app and the worker; pickled, no torch."""

from dataclasses import dataclass

from ckv_core.config import CompareRequest
from ckv_core.events import RunEvent

# --- to the worker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """Run this comparison; `job_id` marks every event that comes back."""

    job_id: str
    request: CompareRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop that job at its next step."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Warm:
    """Load this model now, so that the first run need not wait."""

    model: str
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Tokenise without running; answered even while a job runs."""

    query_id: str
    request: CompareRequest


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Cancel what runs and exit."""


Command = Job | Cancel | Warm | CountTokens | Shutdown

# --- from the worker --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of a running job."""

    job_id: str
    event: RunEvent


@dataclass(frozen=True, slots=True)
class JobDone:
    """The job ran to its end; a RunFinished event came before."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job failed; `message` is the sentence that the user reads."""

    job_id: str
    message: str


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The job stopped on request."""

    job_id: str


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What the worker is doing about a model outside of a job.

    Attributes:
        ready: True once the model can run.
        message: one line for the reader; an error sentence if `failed`.
    """

    model: str
    ready: bool
    message: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class TokensCounted:
    """Answer to CountTokens; `error` is a sentence and the numbers are 0 if it failed."""

    query_id: str
    tokens: int
    compressed_tokens: int
    limit: int
    error: str = ""


Reply = JobEvent | JobDone | JobFailed | JobCancelled | ModelStatus | TokensCounted
