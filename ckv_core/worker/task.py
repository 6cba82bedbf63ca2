"""What the worker is at: how it was asked to stop, and when it counts as hanging. No torch."""

import time

from ckv_core.request.cache_requests import WorkRequest
from ckv_core.worker.messages import Job, JobCancelled, JobDone, JobFailed, Warm, Within

RESTARTS = "A new worker starts by itself."
AGAIN = "Run it again; if that repeats, with a shorter context."
DID_NOT_STOP = "the worker process was ended because its run did not stop on request"
TAKE_S = 60.0  # from the hand-over to the first word


class Task:
    """A job or a warm-up that was handed to the worker. Not thread-safe."""

    def __init__(self, command: Job | Warm, run_limit_s: float | None) -> None:
        """Hand over now; `run_limit_s` counts from a job's first event on, None is no limit."""
        self.command = command
        self._run_limit_s = run_limit_s if isinstance(command, Job) else None
        self._doing = Within(command.job_id, "Handing the run to the worker", TAKE_S)
        self._hangs_at: float | None = time.monotonic() + TAKE_S
        self._over_at: float | None = None
        self._kill_at: float | None = None
        self._stop_reason: str | None = None
        self.is_hung = False

    @property
    def is_warm(self) -> bool:
        """Whether it loads a model ahead, for no run."""
        return isinstance(self.command, Warm)

    @property
    def model(self) -> str:
        return (self.command if isinstance(self.command, Warm) else self.command.request).model

    @property
    def is_stopping(self) -> bool:
        return self._stop_reason is not None

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody wanted its end, and not a limit."""
        return self._stop_reason == ""

    @property
    def has_loaded(self) -> bool:
        """Whether the steps that have a limit are behind it: the model and its prompt."""
        return self._doing.limit_s is None

    def loads_for(self, request: WorkRequest) -> bool:
        """Whether a run of this request would find its model ready afterwards."""
        wanted = (request.model, request.device, request.dtype)
        warm = self.command
        return isinstance(warm, Warm) and (warm.model, warm.device, warm.dtype) == wanted

    def goes_on(self, step: Within) -> None:
        self._doing = step
        self._hangs_at = None if step.limit_s is None else time.monotonic() + step.limit_s

    def has_begun(self) -> None:
        """Its first event has come, or a later one."""
        if self._over_at is None and self._run_limit_s is not None:
            self._over_at = time.monotonic() + self._run_limit_s

    def stop(self, reason: str, grace_s: float) -> None:
        """It was asked to stop, as cancelled without a reason; its worker ends after `grace_s`."""
        self._stop_reason = reason
        self._kill_at = time.monotonic() + grace_s
        self._over_at = None

    def next_deadline(self) -> float | None:
        """When `must_die` or `is_over_limit` may turn true."""
        times = [at for at in (self._hangs_at, self._over_at, self._kill_at) if at is not None]
        return min(times, default=None)

    def must_die(self, now: float) -> bool:
        """Whether its worker has to be ended; true once."""
        self.is_hung = self._hangs_at is not None and now >= self._hangs_at
        if not self.is_hung and (self._kill_at is None or now < self._kill_at):
            return False
        self._hangs_at = self._kill_at = self._over_at = None
        return True

    def is_over_limit(self, now: float) -> bool:
        return self._over_at is not None and now >= self._over_at

    def over_limit(self) -> str:
        """The sentence for a run that has had its time."""
        minutes = (self._run_limit_s or 0) / 60
        return (
            f"The run was ended after {minutes:g} minute{'' if minutes == 1 else 's'}, this app's "
            "limit; what it had is kept. Choose fewer variants or new tokens, or a shorter context."
        )

    def reason_of_loss(self, reason: str) -> str:
        """Half a sentence on why its worker is gone: the given one where the task was no cause."""
        if self.is_hung:
            return (
                f"{self._doing.what} took longer than {self._doing.limit_s:,.0f} s, so it was "
                "ended; check the model's files or choose another model"
            )
        return DID_NOT_STOP if self.is_stopping else reason

    def lost(self, sentence: str) -> JobDone | JobFailed | JobCancelled:
        """How it ends with its worker, whose loss the sentence tells."""
        message = sentence if self.is_hung else f"{sentence} {AGAIN}"
        return self.end(JobFailed(self.command.job_id, message))

    def end(self, reply: JobDone | JobFailed | JobCancelled) -> JobDone | JobFailed | JobCancelled:
        """How it ends, for whoever asked: as cancelled or over its time if that came first."""
        if self._stop_reason is None or isinstance(reply, JobDone):
            return reply
        if self._stop_reason:
            return JobFailed(self.command.job_id, self._stop_reason)
        return JobCancelled(self.command.job_id)
