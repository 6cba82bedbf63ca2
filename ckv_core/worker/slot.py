"""The one worker and what it is at: start, deadlines, loss. No torch."""

import logging
import time
from collections.abc import Callable

from ckv_core.worker.messages import Cancel, Job, ModelStatus, Warm
from ckv_core.worker.process import WorkerProcess
from ckv_core.worker.task import Task

LOGGER = logging.getLogger(__name__)
FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 30.0
START_S = 300.0  # importing the engine, on a slow disk


class WorkerSlot:
    """Starts a worker, and replaces one that is lost. Not thread-safe.

    Attributes:
        worker: None before the start, and between two.
        is_ready: it takes tasks.
        task: what it is at.
        loaded: the models that it said are ready, by name.
        failed_starts: since a worker last said anything.
    """

    def __init__(
        self, start: Callable[[], WorkerProcess], cancel_grace_s: float, run_limit_s: float | None
    ) -> None:
        """Start nothing yet; `start` starts a worker. The times are `WorkerClient`'s."""
        self._start = start
        self._cancel_grace_s, self._run_limit_s = cancel_grace_s, run_limit_s
        self.worker: WorkerProcess | None = None
        self.is_ready = False
        self.task: Task | None = None
        self.loaded: dict[str, ModelStatus] = {}
        self.failed_starts = 0
        self._start_at = 0.0
        self._started_by = 0.0

    @property
    def is_idle(self) -> bool:
        return self.is_ready and self.task is None

    def hand(self, command: Job | Warm) -> None:
        """Begin a task, while idle."""
        self.task = Task(command, self._run_limit_s)
        if self.worker is not None:
            self.worker.send(command)

    def stop(self, reason: str) -> None:
        """Ask the task to stop; it ends with this reason, or as cancelled without one."""
        if self.task is not None and self.worker is not None and not self.task.is_stopping:
            self.task.stop(reason, self._cancel_grace_s)
            self.worker.send(Cancel(self.task.command.job_id))

    def next_deadline(self) -> float | None:
        """When `meet_deadlines` has something to do."""
        if self.worker is None:
            return self._start_at
        if not self.is_ready:
            return self._started_by
        return self.task.next_deadline() if self.task else None

    def meet_deadlines(self, now: float) -> str:
        """Start a worker, end one, or end a run; returns why no worker could be started."""
        if self.worker is None:
            if now >= self._start_at:
                return self._start_worker(now)
        elif not self.is_ready:
            if now >= self._started_by:
                LOGGER.warning("The worker did not start in time; ending it.")
                self._started_by = now + START_S
                self.worker.kill()
        elif self.task is not None:
            if self.task.must_die(now):
                LOGGER.warning("A task neither went on nor stopped; ending its worker.")
                self.worker.kill()
            elif self.task.is_over_limit(now):
                self.stop(self.task.over_limit())
        return ""

    def lost(self, *, worked: bool) -> list[ModelStatus]:
        """Its worker is gone, the next one starts; returns the models that are gone with it."""
        self.worker, self.is_ready = None, False
        self.failed_starts = 0 if worked else self.failed_starts + 1
        wait_s = 0.0
        if self.failed_starts:
            wait_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (self.failed_starts - 1))
        self._start_at = time.monotonic() + wait_s
        gone = list(self.loaded.values())
        self.loaded.clear()
        return gone

    def _start_worker(self, now: float) -> str:
        self._started_by = now + START_S
        try:
            self.worker = self._start()
        except Exception as error:  # no process, no thread, no memory: try again later
            LOGGER.exception("The worker process could not be started.")
            return f"the worker process could not be started ({error})"
        return ""
