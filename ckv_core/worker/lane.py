"""One worker and what it is at: start, deadlines, loss, the prompts that it knows. No torch."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ckv_core.request.cache_requests import AskRequest, KeepRequest, WorkRequest
from ckv_core.worker.messages import Cancel, Command, Job, ModelStatus, Warm
from ckv_core.worker.task import Task

LOGGER = logging.getLogger(__name__)
FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 30.0
START_S = 300.0  # importing the engine, on a slow disk
KNOWN_PROMPTS = 8  # a guess at how many prefills a worker keeps; a wrong one costs a prefill


class Worker(Protocol):
    """A started worker; `process.WorkerProcess` and `cluster_worker.ClusterWorker` are the two."""

    has_replied: bool

    @property
    def pid(self) -> int | None:
        """Of its process; None where that is none of this machine's."""

    def send(self, command: Command) -> None:
        """Hand over a command without waiting; lost if the worker dies first."""

    def kill(self) -> None:
        """End it now; its loss is told."""

    def stop(self, timeout_s: float) -> None:
        """End it within the time."""

    def exit_reason(self) -> str:
        """Half a sentence on how it ended."""


class Lane:
    """Has a worker from the first `wake` on, and replaces one that is lost. Not thread-safe.

    Attributes:
        worker: None before the start, and between two.
        is_ready: it takes tasks.
        task: what it is at.
        loaded: the models that it said are ready, by name.
        failed_starts: since a worker last said anything.
    """

    def __init__(
        self, start: Callable[["Lane"], Worker], cancel_grace_s: float, run_limit_s: float | None
    ) -> None:
        """Start nothing; `start` starts a worker of this lane. The times are `WorkerClient`'s."""
        self._start = start
        self._cancel_grace_s, self._run_limit_s = cancel_grace_s, run_limit_s
        self.worker: Worker | None = None
        self.is_ready = False
        self.task: Task | None = None
        self.loaded: dict[str, ModelStatus] = {}
        self.failed_starts = 0
        self._start_at: float | None = None
        self._started_by = 0.0
        self._used_at = 0.0
        self._model = ""
        self._prompts: deque[tuple[int, int]] = deque(maxlen=KNOWN_PROMPTS)

    @property
    def is_asleep(self) -> bool:
        """Nobody has needed it yet."""
        return self._start_at is None

    @property
    def is_idle(self) -> bool:
        return self.is_ready and self.task is None

    @property
    def may_serve(self) -> bool:
        """Whether its worker takes tasks, or can be expected to."""
        return self.worker is not None and not self.failed_starts

    def wake(self) -> None:
        """Have a worker from now on."""
        if self._start_at is None:
            self._start_at = time.monotonic()

    def rank(self, command: Job | Warm) -> tuple[float, ...]:
        """How well it suits, more is better.

        That it read this prompt or context, that it has the model, the room, how long it is idle.
        """
        wanted = command.request if isinstance(command, Job) else command
        known = 0
        if isinstance(command, Job) and wanted.model == self._model:
            context, rest = _prompt_of(command.request) or (None, None)
            known = max((1 + (r == rest) for c, r in self._prompts if c == context), default=0)
        return known, wanted.model in self.loaded, -len(self.loaded), -self._used_at

    def hand(self, command: Job | Warm) -> None:
        """Begin a task, while idle."""
        wanted = command.request if isinstance(command, Job) else command
        if wanted.model != self._model:
            self._model = wanted.model
            self._prompts.clear()  # as a worker drops the prefills of other models
        prompt = _prompt_of(command.request) if isinstance(command, Job) else None
        if prompt is not None:
            self._prompts.append(prompt)
        self._used_at = time.monotonic()
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
            if self._start_at is not None and now >= self._start_at:
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
        self.worker, self.is_ready, self._model = None, False, ""
        self._prompts.clear()
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
            self.worker = self._start(self)
        except Exception as error:  # no process, no thread, no memory: try again later
            LOGGER.exception("The worker process could not be started.")
            return f"the worker process could not be started ({error})"
        return ""


def _prompt_of(request: WorkRequest) -> tuple[int, int] | None:
    """Stands for the context, and for the rest of the prompt; None where none is read."""
    if isinstance(request, AskRequest):
        return None
    run = request.run if isinstance(request, KeepRequest) else request
    return hash(run.context), hash((run.question, run.scenario))
