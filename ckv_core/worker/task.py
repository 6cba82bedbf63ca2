"""The job that the worker does: how its stop was requested, and when it counts as hanging."""

import time

from ckv_core.worker.messages import Deadline, Job, JobEnd

RESTARTS = "A new worker starts by itself."
AGAIN = "Run it again; if that repeats, with a shorter context."
DID_NOT_STOP = "the worker process was ended because its run did not stop on request"
TAKE_S = 60.0  # from the hand-over to the first word


class Task:
    """A job that was handed to the worker. Not thread-safe.

    Attributes:
        is_hung: a step took longer than it may.
        is_stopping: it shall stop.
        comes_again: it stops for another job, and begins again after that.
    """

    def __init__(self, job: Job) -> None:
        """Hand over now."""
        self.job = job
        self.is_hung = self.is_stopping = self.comes_again = False
        self._step = Deadline(job.job_id, "Handing the run to the worker", TAKE_S)
        self._hangs_at: float | None = time.monotonic() + TAKE_S
        self._kill_at: float | None = None

    @property
    def has_loaded(self) -> bool:
        """Whether the steps that have a limit are behind it: the model and its prompt."""
        return self._step.of_run

    def next_step(self, step: Deadline) -> None:
        self._step = step
        self._hangs_at = None if step.limit_s is None else time.monotonic() + step.limit_s

    def stop(self, grace_s: float) -> None:
        """Note that it shall stop; it may take `grace_s`."""
        self.is_stopping = True
        self._kill_at = time.monotonic() + grace_s

    def next_deadline(self) -> float | None:
        """When `must_die` may turn true."""
        times = [at for at in (self._hangs_at, self._kill_at) if at is not None]
        return min(times, default=None)

    def must_die(self, now: float) -> bool:
        """Whether its worker has to be ended; true once."""
        self.is_hung = self._hangs_at is not None and now >= self._hangs_at
        if not self.is_hung and (self._kill_at is None or now < self._kill_at):
            return False
        self._hangs_at = self._kill_at = None
        return True

    def reason_of_loss(self, reason: str) -> str:
        """Half a sentence on why its worker is gone: the given one where the task was no cause."""
        if self.is_hung:
            advice = "check the model's files or choose another model"
            if self._step.of_run:
                advice = "update or remove that package, or choose another method"
            limit = f"{self._step.limit_s:,.0f} s"
            return f"{self._step.what} took longer than {limit}, so it was ended; {advice}"
        return DID_NOT_STOP if self.is_stopping else reason

    def lost(self, sentence: str) -> JobEnd:
        """How it ends with its worker, for the reason in the sentence."""
        message = sentence if self.is_hung else f"{sentence} {AGAIN}"
        return self.end(JobEnd(self.job.job_id, "failed", message))

    def end(self, reply: JobEnd) -> JobEnd:
        """How it ends for its user: as cancelled if that came first."""
        if self.is_stopping and reply.state != "done":
            return JobEnd(self.job.job_id, "cancelled")
        return reply
