"""The app's side of the worker: one task at a time, deadlines, restart after a loss. No torch."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker.counting import COUNT_RUNNER, TokenCounter
from ckv_core.worker.fair_queue import FairQueue, Warms
from ckv_core.worker.messages import (
    Cancel,
    Job,
    JobCancelled,
    JobDone,
    JobEvent,
    JobFailed,
    ModelStatus,
    Ping,
    Pong,
    Reply,
    TokensCounted,
    Warm,
    Within,
    WorkerReady,
)
from ckv_core.worker.process import ENGINE_RUNNER, WorkerProcess, worker_main
from ckv_core.worker.task import RESTARTS, Task

LOGGER = logging.getLogger(__name__)
FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 30.0
START_S = 300.0  # importing the engine, on a slow disk


class WorkerClient:
    """Keeps one worker alive and hands it one task at a time: a job, else a model to warm up.

    The queue is here, so a lost worker loses the running task only. All state but the queue
    belongs to one thread, which takes steps from an inbox; public methods only post such steps
    and never block, but for `count_tokens`, `is_ready` and `close`.
    """

    def __init__(
        self,
        on_reply: Callable[[Reply], None],
        *,
        runner: str = ENGINE_RUNNER,
        counter: str = COUNT_RUNNER,
        cancel_grace_s: float = 10.0,
        run_limit_s: float | None = None,
    ) -> None:
        """Prepare; `start` starts.

        Args:
            on_reply: gets JobEvent, JobDone, JobFailed, JobCancelled and ModelStatus, one at a
                time, in the client's thread. Every submitted job ends with exactly one of
                Done, Failed and Cancelled.
            runner: `module:attribute` of the engine, imported in the worker only.
            counter: the same of what counts tokens, in a process of its own.
            cancel_grace_s: a task that has not stopped by then costs the worker its life.
            run_limit_s: from a job's first event on; None for no limit.
        """
        self._on_reply = on_reply
        self._runner = runner
        self._cancel_grace_s = cancel_grace_s
        self._run_limit_s = run_limit_s
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker-client", daemon=True)
        self._queue = FairQueue()
        self._warms = Warms()
        self._task: Task | None = None
        self._worker: WorkerProcess | None = None
        self._is_ready = False
        self._start_at = 0.0
        self._started_by = 0.0
        self._failed_starts = 0
        self._loaded: dict[str, ModelStatus] = {}
        self._pings: list[Future[bool]] = []
        self._closed = False
        self._counter = TokenCounter(counter)

    # --- public, any thread -------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def worker_pid(self) -> int | None:
        """Process id of the present worker, None between two."""
        worker = self._worker
        return worker.pid if worker else None

    def is_ready(self, timeout_s: float = 2.0) -> bool:
        """Whether a job would start, once those ahead of it are over: the worker answers."""
        answer: Future[bool] = Future()
        self._inbox.put(partial(self._ping, answer))
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            return False

    def submit(self, job: Job) -> None:
        """Queue a job; users take turns."""
        self._queue.put(job)
        self._inbox.put(self._dispatch)

    def order(self) -> tuple[str, ...]:
        """Ids of the job that runs, if one does, and of the waiting ones as they will run."""
        return self._queue.order()

    def cancel(self, job_id: str) -> None:
        """Remove a queued job, stop a running one; nothing if it is over."""
        self._inbox.put(partial(self._cancel, job_id))

    def warm(self, model: str, device: str = "auto", dtype: str = "auto") -> None:
        """Load a model ahead of its first run; ModelStatus replies tell how it goes.

        Runs come first: a warm-up waits for them, and stops for one of another model.
        """
        self._inbox.put(partial(self._add_warm, Warm(model, device, dtype)))

    def cancel_warm(self, model: str) -> None:
        """Stop loading a model ahead; a run that loads it goes on."""
        self._inbox.put(partial(self._cancel_warm, model))

    def count_tokens(self, request: CompareRequest, timeout_s: float = 30.0) -> TokensCounted:
        """Tokenise in a process of its own; waits. Failure is in the answer's `error`."""
        return self._counter.count(request, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel all jobs and end the worker; returns within the time, leaves no process."""
        deadline = time.monotonic() + timeout_s
        self._counter.close()
        self._inbox.put(partial(self._shut_down, timeout_s / 2))
        if self._thread.ident is not None:
            self._thread.join(max(0.1, deadline - time.monotonic()))
        if self._worker is not None:  # the thread is stuck in on_reply
            self._worker.kill()

    # --- the client's own thread --------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            self._meet_deadlines()
            try:
                step = self._inbox.get(timeout=self._until_deadline())
            except queue.Empty:
                continue
            try:
                step()
            except Exception:
                LOGGER.exception("A step of the worker client failed.")

    def _until_deadline(self) -> float | None:
        if self._worker is None:
            at: float | None = self._start_at
        elif not self._is_ready:
            at = self._started_by
        else:
            at = self._task.next_deadline() if self._task else None
        return None if at is None else max(0.0, at - time.monotonic())

    def _meet_deadlines(self) -> None:
        now = time.monotonic()
        if self._worker is None:
            if now >= self._start_at:
                self._start_worker()
        elif not self._is_ready:
            if now >= self._started_by:
                LOGGER.warning("The worker did not start in time; ending it.")
                self._started_by = now + START_S
                self._worker.kill()
        elif self._task is not None:
            if self._task.must_die(now):
                LOGGER.warning("A task neither went on nor stopped; ending its worker.")
                self._worker.kill()
            elif self._task.is_over_limit(now):
                self._stop(self._task.over_limit())

    def _start_worker(self) -> None:
        self._started_by = time.monotonic() + START_S
        try:
            self._worker = WorkerProcess(
                partial(worker_main, runner=self._runner),
                lambda worker, reply: self._inbox.put(partial(self._take, worker, reply)),
                lambda worker: self._inbox.put(partial(self._replace, worker)),
            )
        except Exception as error:  # no process, no thread, no memory: try again later
            LOGGER.exception("The worker process could not be started.")
            self._after_loss(f"the worker process could not be started ({error})", worked=False)

    def _dispatch(self) -> None:
        """Hand over what comes next; a warm-up makes room for another model's run."""
        if self._worker is None or not self._is_ready:
            return
        if self._task is None:
            command = self._queue.take() or self._warms.take()
            if command is not None:
                self._task = Task(command, self._run_limit_s)
                self._worker.send(command)
        elif isinstance(self._task.command, Warm):
            first = self._queue.first()
            if first is not None and not self._task.loads_for(first.request):
                self._stop("")

    def _stop(self, reason: str) -> None:
        """Ask the running task to stop; it ends with this reason, or as cancelled without one."""
        if self._task is not None and self._worker is not None and not self._task.is_stopping:
            self._task.stop(reason, self._cancel_grace_s)
            self._worker.send(Cancel(self._task.command.job_id))

    def _cancel(self, job_id: str) -> None:
        if self._queue.remove(job_id):
            self._report(JobCancelled(job_id))
            self._dispatch()
        elif self._task is not None and self._task.command.job_id == job_id:
            self._stop("")

    def _add_warm(self, warm: Warm) -> None:
        told = self._warms.add(warm)
        if told is not None:
            self._report(told)
        self._dispatch()

    def _cancel_warm(self, model: str) -> None:
        if self._warms.remove(model):
            self._report(ModelStatus(model, False, f"Loading {model} was cancelled."))
        command = self._task.command if self._task else None
        if isinstance(command, Warm) and command.model == model:
            self._stop("")

    def _ping(self, answer: Future[bool]) -> None:
        if self._worker is None or not self._is_ready:
            answer.set_result(False)
            return
        self._pings.append(answer)
        self._worker.send(Ping())

    def _answer_pings(self, *, alive: bool) -> None:
        for answer in self._pings:
            answer.set_result(alive)
        self._pings.clear()

    def _take(self, worker: WorkerProcess, reply: Reply) -> None:
        """One reply of the worker; what a replaced one or an ended task still says is dropped."""
        if worker is not self._worker:
            return
        self._failed_starts = 0
        match reply:
            case WorkerReady():
                self._is_ready = True
                self._dispatch()
            case Pong():
                self._answer_pings(alive=True)
            case ModelStatus():
                self._take_status(reply)
            case Within() | JobEvent() | JobDone() | JobFailed() | JobCancelled():
                if self._task is not None and self._task.command.job_id == reply.job_id:
                    self._take_of_task(self._task, reply)

    def _take_status(self, status: ModelStatus) -> None:
        self._loaded.pop(status.model, None)
        if status.ready:
            self._loaded[status.model] = status
        self._report(status)

    def _take_of_task(
        self, task: Task, reply: Within | JobEvent | JobDone | JobFailed | JobCancelled
    ) -> None:
        if isinstance(reply, Within):
            task.goes_on(reply)
        elif isinstance(reply, JobEvent):
            task.has_begun()
            self._report(reply)
        else:
            self._end_task(task.end(reply))
            self._dispatch()

    def _end_task(self, end: JobDone | JobFailed | JobCancelled) -> None:
        task, self._task = self._task, None
        if task is not None and isinstance(task.command, Job):
            self._queue.done()
            self._report(end)

    def _replace(self, worker: WorkerProcess) -> None:
        """The worker is gone: end its task, start the next one."""
        if worker is self._worker:
            self._worker = None
            LOGGER.warning("Worker lost: %s.", worker.exit_reason())
            self._after_loss(worker.exit_reason(), worked=worker.has_replied)

    def _after_loss(self, reason: str, *, worked: bool) -> None:
        self._is_ready = False
        self._answer_pings(alive=False)
        self._failed_starts = 0 if worked else self._failed_starts + 1
        wait_s = 0.0
        if self._failed_starts:
            wait_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (self._failed_starts - 1))
            if self._task is None and (job := self._queue.take()) is not None:
                self._task = Task(job, None)  # a worker that cannot start fails the first job
        self._start_at = time.monotonic() + wait_s
        for status in list(self._loaded.values()):
            self._report(ModelStatus(status.model, False, _sentence(reason)))
        self._loaded.clear()
        if self._task is not None:
            # Of this nothing goes to others: it may name what somebody else wanted to load.
            self._end_lost(self._task, _sentence(self._task.reason_of_loss(reason)))

    def _end_lost(self, task: Task, sentence: str) -> None:
        command = task.command
        if isinstance(command, Warm) or not task.has_loaded:
            failed = not task.is_cancelled
            model = command.model if isinstance(command, Warm) else command.request.model
            self._report(ModelStatus(model, False, sentence, failed=failed))
            if task.is_hung:
                self._warms.refuse(model, sentence)
        self._end_task(task.lost(sentence))

    def _shut_down(self, timeout_s: float) -> None:
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop(timeout_s)
        self._answer_pings(alive=False)
        if self._task is not None:
            self._end_task(JobCancelled(self._task.command.job_id))
        while (job := self._queue.take()) is not None:
            self._report(JobCancelled(job.job_id))

    def _report(self, reply: Reply) -> None:
        try:
            self._on_reply(reply)
        except Exception:
            LOGGER.exception("A reply of the worker could not be taken in.")


def _sentence(reason: str) -> str:
    return f"{reason[0].upper()}{reason[1:]}. {RESTARTS}"
