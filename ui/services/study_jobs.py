"""A study's samples as jobs of the app's worker: each waits its turn among the runs of all."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import wait
from uuid import uuid4

from ckv_core.base.checkpoints import checkpoint
from ckv_core.errors import CkvError, PromptError, RunCancelledError
from ckv_core.experiment.study_runner import PromptSize
from ckv_core.records.events import Outcome, RunResult
from ckv_core.records.records import ModelInfo
from ckv_core.records.run_request import RunRequest
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import (
    Job,
    JobCancelled,
    JobDone,
    JobEvent,
    JobFailed,
    Reply,
    TokensCounted,
)
from ckv_core.worker.task import RESTARTS

LOST_TRIES = 2  # a sample whose worker was lost so often is at fault itself
COUNT_S = 60.0  # for somebody who waits at a page; a study's samples wait as long as it takes
LOOK_S = 1.0


def prompt_size(worker: WorkerClient, request: RunRequest) -> PromptSize:
    """Of the request's prompt; waits, and raises PromptError for one that is wrong."""
    checkpoint()
    return _size(worker.count_tokens(request, COUNT_S))


def _size(counted: TokensCounted) -> PromptSize:
    if counted.error:
        error = PromptError(counted.error)
        error.for_good = counted.for_good
        raise error
    return PromptSize(counted.tokens, counted.compressed_tokens, counted.question_tokens)


class StudyJobs:
    """One study's engine, of `runner.Engine`; used by one thread, stopped by any."""

    def __init__(
        self,
        worker: WorkerClient,
        owner: str | None,
        on_served: Callable[[ModelInfo, Mapping[str, str]], None],
    ) -> None:
        """Prepare.

        `on_served` gets the model that served and the versions, and may raise.
        """
        self._worker, self._owner = worker, owner
        self._on_served = on_served
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._stopped = threading.Event()
        self._job_id = ""
        self._result = RunResult()
        self._end: JobDone | JobFailed | JobCancelled | None = None

    def size(self, request: RunRequest) -> PromptSize:
        """Of the request's prompt; CkvError for one that is wrong.

        Counting that is slow, or has no room, is waited for; RunCancelledError once stopped.
        """
        while True:
            answer = self._worker.ask_tokens(request)
            while not wait([answer], LOOK_S).done:
                if self._stopped.is_set():
                    answer.cancel()
                    raise RunCancelledError
            counted = answer.result()
            if not counted.is_busy:
                break
            self.rest(LOOK_S)
        if self._stopped.is_set():  # an app that closes answers so, which is no result
            raise RunCancelledError
        return _size(counted)

    def rest(self, seconds: float) -> None:
        """Wait for so long; RunCancelledError once stopped."""
        if self._stopped.wait(seconds):
            raise RunCancelledError

    def run_all(self, requests: Iterable[RunRequest]) -> Iterator[Outcome]:
        """One after another, each a job of its own; RunCancelledError once stopped."""
        for place, request in enumerate(requests):
            yield place, self._run(request)

    def _run(self, request: RunRequest) -> RunResult | CkvError:
        """The whole result, or why there is none; a lost worker is tried once more."""
        for tries_left in reversed(range(LOST_TRIES)):
            end = self._run_once(request)
            if isinstance(end, JobCancelled) or self._stopped.is_set():
                raise RunCancelledError
            if isinstance(end, JobDone):
                break
            if RESTARTS not in end.message or not tries_left:
                error = CkvError(end.message)
                error.for_good = end.for_good
                return error
        return self._served()

    def stop(self) -> None:
        """Stop the job that runs, and take no other."""
        with self._lock:
            self._stopped.set()
            job_id = self._job_id
        if job_id:
            self._worker.cancel(job_id)

    def take(self, reply: Reply) -> None:
        """A reply about the job that runs, in the worker client's thread."""
        if isinstance(reply, JobEvent):
            self._result.apply(reply.event)
        elif isinstance(reply, JobDone | JobFailed | JobCancelled):
            self._end = reply
            self._over.set()

    def _run_once(self, request: RunRequest) -> JobDone | JobFailed | JobCancelled:
        with self._lock:
            if self._stopped.is_set():
                raise RunCancelledError
            self._job_id = uuid4().hex
            self._result, self._end = RunResult(), None
            self._over.clear()
        self._worker.submit(Job(self._job_id, request, self._owner), self.take)
        self._over.wait()
        return self._end or JobCancelled(self._job_id)

    def _served(self) -> RunResult:
        result = self._result
        if result.model is not None:
            self._on_served(result.model, result.environment)
        return result
