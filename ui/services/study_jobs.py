"""What computes the samples of a run in the app: its worker, job by job, or a cluster in turns."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager
from typing import TypeVar
from uuid import uuid4

from ckv_core.base.checkpoints import checkpoint
from ckv_core.errors import CkvError, PromptError, RunCancelledError
from ckv_core.experiment.cluster import Cluster
from ckv_core.experiment.study_runner import Results, Served, Todo, run_samples
from ckv_core.records.events import Outcome, RunResult, TokensCounted
from ckv_core.records.run_request import RunRequest
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import Job, JobEnd, JobEvent, Reply

T = TypeVar("T")
LOST_TRIES = 2  # a sample whose worker was lost so often is at fault itself
COUNT_S = 60.0  # for somebody who waits at a page; samples of a run wait as long as it takes
LOOK_S = 0.2  # between looks whether the run was stopped
CLUSTER_TURN = 8  # samples a worker, before another user's run has the cluster


def prompt_size(worker: WorkerClient, request: RunRequest) -> TokensCounted:
    """Of the request's prompt; waits, and raises PromptError for one that is wrong."""
    checkpoint()
    return _counted(worker.counter.count(request, COUNT_S))


def _counted(counted: TokensCounted) -> TokensCounted:
    if counted.error:
        raise _failure(PromptError(counted.error), for_good=counted.for_good)
    return counted


def _failure(error: CkvError, *, for_good: bool) -> CkvError:
    error.for_good = for_good
    return error


class WorkerEngine:
    """The app's worker as the engine of one run: each sample waits its turn among the jobs of all.

    One thread uses it; RunCancelledError ends it soon after `stopped` is set.
    """

    def __init__(self, worker: WorkerClient, owner: str | None, stopped: threading.Event) -> None:
        self._worker, self._owner, self._stopped = worker, owner, stopped
        self._served: Served = lambda *_: None

    def results(self, study: RunRequest, todo: Sequence[Todo], served: Served) -> Iterator[Results]:
        """Results of the given points, sample by sample; `study_runner.Engine` has the rules."""
        self._served = served
        return run_samples(study, todo, self)

    def size(self, request: RunRequest) -> TokensCounted:
        """Of the request's prompt, however long others are counted first.

        Raises:
            PromptError: it is wrong.
        """
        return _counted(self._wait_for(self._worker.counter.ask(request, self._owner)))

    def run_all(self, requests: Iterable[RunRequest]) -> Iterator[Outcome]:
        """One after another, each a job of its own."""
        for place, request in enumerate(requests):
            yield place, self._run(request)

    def _run(self, request: RunRequest) -> RunResult | CkvError:
        """The whole result, or why there is none."""
        result, answer = RunResult(), Future[JobEnd]()

        def take(reply: Reply) -> None:
            if isinstance(reply, JobEvent):
                result.apply(reply.event)
            elif isinstance(reply, JobEnd):
                answer.set_result(reply)

        job = Job(uuid4().hex, request, self._owner, LOST_TRIES)
        self._worker.submit(job, take)
        try:
            end = self._wait_for(answer)
        except RunCancelledError:
            self._worker.cancel(job.job_id)
            raise
        if end.state == "cancelled":
            raise RunCancelledError
        if end.state == "failed":
            return _failure(CkvError(end.reason), for_good=end.for_good)
        if result.model is not None:
            self._served(result.model, result.environment)
        return result

    def _wait_for(self, answer: Future[T]) -> T:
        while not wait([answer], LOOK_S).done and not self._stopped.is_set():
            pass
        if self._stopped.is_set():  # an app that closes answers too, which is no result
            raise RunCancelledError
        return answer.result()


class ClusterTurns:
    """A cluster as the engine of all runs: it works at some samples of one while others wait."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()  # in the order in which they came

    def results(self, study: RunRequest, todo: Sequence[Todo], served: Served) -> Iterator[Results]:
        """Results of the given points, sample by sample; `study_runner.Engine` has the rules."""
        left = {sample.id: (sample, points) for sample, points in todo}
        while left:
            with (
                self._turn(),
                closing(self._cluster.results(study, [*left.values()], served)) as ran,
            ):
                for count, results in enumerate(ran, 1):
                    del left[results[0].sample]
                    yield results
                    if count >= CLUSTER_TURN * self._cluster.workers and self.others_wait:
                        break

    @property
    def others_wait(self) -> bool:
        return len(self._waiting) > 1

    @contextmanager
    def _turn(self) -> Iterator[None]:
        me = object()
        with self._changed:
            self._waiting.append(me)
            self._changed.wait_for(lambda: self._waiting[0] is me)
        try:
            yield
        finally:
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()
