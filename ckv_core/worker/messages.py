"""Frozen messages between the app and the worker; pickled, no torch."""

from dataclasses import dataclass

from ckv_core.request.cache_requests import WorkRequest
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import RunEvent

# --- to the worker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """Run this comparison, or keep or ask a cache."""

    job_id: str  # marks every event that comes back
    request: WorkRequest
    owner: str | None = None  # the user whose turn it takes; None where nobody logs in


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop that job, or that warm-up, at its next step."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Warm:
    """Load this model now, so that the first run need not wait; it ends as a job does."""

    model: str
    device: str = "auto"
    dtype: str = "auto"
    job_id: str = "warm"


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer with Pong, whatever runs."""


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Tokenise without running; for the process that counts."""

    query_id: str
    request: CompareRequest


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Cancel what runs and exit."""


Command = Job | Cancel | Warm | Ping | CountTokens | Shutdown

# --- from the worker --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The engine is imported; jobs are taken from now on."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to Ping."""


@dataclass(frozen=True, slots=True)
class Within:
    """What a job, a warm-up or a count is at. Over its time it hangs, and its process is ended."""

    job_id: str  # of the job or warm-up, or the query
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
    # More will come; `WorkerClient.cancel_warm` stops a load that no run asked for.
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
    is_busy: bool = False  # there was no time or room to count; it may be asked again
    question_tokens: int = 0  # of the compressed ones, behind the context
    field: str = ""  # of the request, that is wrong where there is an error and it is of one


Reply = (
    WorkerReady
    | Pong
    | Within
    | JobEvent
    | JobDone
    | JobFailed
    | JobCancelled
    | ModelStatus
    | TokensCounted
)
