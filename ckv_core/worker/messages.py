"""Frozen messages between the app and the worker; pickled, no torch."""

from dataclasses import dataclass

from ckv_core.records.cache_requests import WorkRequest
from ckv_core.records.events import RunEvent
from ckv_core.records.run_request import RunRequest

# --- to the worker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Load this model now, so that the first run need not wait."""

    model: str
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class Job:
    """Run this comparison, keep or ask a cache, or only load a model."""

    job_id: str  # marks every event that comes back
    request: WorkRequest | LoadRequest
    owner: str | None = None  # the user whose turn it takes; None where nobody logs in

    @property
    def loads_ahead(self) -> bool:
        """Whether it only loads a model."""
        return isinstance(self.request, LoadRequest)

    def loads_as(self, other: "Job") -> bool:
        """Whether the model that it loads serves another job too."""
        ours, theirs = (
            (each.request.model, each.request.device, each.request.dtype) for each in (self, other)
        )
        return ours == theirs


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop that job at its next step."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer with Pong, whatever runs."""


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Tokenise without running; for the process that counts."""

    query_id: str
    request: RunRequest


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop what runs and exit."""


Command = Job | Cancel | Ping | CountTokens | Shutdown

# --- from the worker --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The engine is imported; jobs are taken from now on."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to Ping."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """What a job or a count does next. Over its time it hangs, and its process is ended."""

    job_id: str  # of the job or the query
    what: str  # as a sentence's beginning, e.g. `Reading the config of X`.
    limit_s: float | None  # until the next message of this kind; None for no limit


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
    for_good: bool = False  # the same request fails each time


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The job stopped on request."""

    job_id: str


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What the worker is doing about a model."""

    model: str
    ready: bool  # True once the model can run
    message: str  # one line for the reader; an error sentence if `failed`
    failed: bool = False
    # More will come; `WorkerClient.cancel_warm` stops a load that no run needs.
    loading: bool = False
    # How much of a download or of the weights there is, 0 to 1; None where unknown.
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class TokensCounted:
    """Answer to CountTokens; `error` is a sentence and the numbers are 0 if it failed."""

    query_id: str
    tokens: int
    compressed_tokens: int
    limit: int
    error: str = ""
    for_good: bool = False  # it fails each time
    is_busy: bool = False  # there was no time or room to count; try again
    question_tokens: int = 0  # of the compressed ones, behind the context
    field: str = ""  # of the request, that is wrong where there is an error and it is of one


JobEnd = JobDone | JobFailed | JobCancelled
Reply = WorkerReady | Pong | Deadline | JobEvent | JobEnd | ModelStatus | TokensCounted
