"""Frozen messages between the app and the worker; pickled, no torch."""

from dataclasses import dataclass
from typing import Literal

from ckv_core.records.events import RunEvent
from ckv_core.records.work_requests import PreviewRequest, WhyRequest, WorkRequest

# --- to the worker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Load this model now, so that the first run need not wait."""

    model: str
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class Job:
    """Run, preview or count this comparison, keep or ask a cache, or only load a model."""

    job_id: str  # marks every event that comes back
    request: WorkRequest | LoadRequest
    owner: str | None = None  # the user whose turn it takes; None where nobody logs in
    tries: int = 1  # workers that it may lose; then it is at fault itself

    @property
    def loads_ahead(self) -> bool:
        """Whether it only loads a model."""
        return isinstance(self.request, LoadRequest)

    @property
    def gives_way(self) -> bool:
        """Whether it stops for any other job, and begins again once none waits."""
        return isinstance(self.request, PreviewRequest | WhyRequest)

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
class Shutdown:
    """Stop what runs and exit."""


Command = Job | Cancel | Shutdown

# --- from the worker --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The engine is imported; jobs are taken from now on."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The next step of a job. If it takes over its time, its process is ended."""

    job_id: str
    what: str  # as a sentence's beginning, e.g. `Reading the config of X`.
    limit_s: float | None  # until the next message of this kind; None for no limit
    of_run: bool = False  # model and prompt are behind it


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of a running job."""

    job_id: str
    event: RunEvent


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended; a run that is done sent a RunFinished event before."""

    job_id: str
    state: Literal["done", "failed", "cancelled"] = "done"
    reason: str = ""  # the sentence that the user reads of one that failed
    for_good: bool = False  # the same request fails each time
    field: str = ""  # of the request, that is wrong


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


Reply = WorkerReady | Deadline | JobEvent | JobEnd | ModelStatus
