"""The app's side of the worker: the queue, what the worker does next, what it reports. No torch."""

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
from ckv_core.worker.slot import WorkerSlot
from ckv_core.worker.task import RESTARTS, Task

LOGGER = logging.getLogger(__name__)


class WorkerClient:
    """Keeps a worker alive and hands it one task at a time: a job, else a model to warm up.

    The queue is here, so a lost worker loses the task that it ran only. All state but the queue
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
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker-client", daemon=True)
        self._queue = FairQueue()
        self._warms = Warms()
        main = partial(worker_main, runner=runner)
        self._slot = WorkerSlot(
            lambda: WorkerProcess(main, self._on_worker_reply, self._on_worker_lost),
            cancel_grace_s,
            run_limit_s,
        )
        self._pings: list[Future[bool]] = []
        self._closed = False
        self._counter = TokenCounter(counter)

    # --- public, any thread -------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker; None between two."""
        worker = self._slot.worker
        return worker.pid if worker else None

    def is_ready(self, timeout_s: float = 2.0) -> bool:
        """Whether a job would start, once those ahead of it are over: a worker answers."""
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
        """Ids of the jobs that run, if any do, and of the waiting ones as they will run."""
        return self._queue.order()

    def cancel(self, job_id: str) -> None:
        """Remove a queued job, stop a running one; nothing if it is over."""
        self._inbox.put(partial(self._cancel, job_id))

    def warm(self, model: str) -> None:
        """Load a model ahead of its first run; ModelStatus replies tell how it goes.

        Runs come first: a warm-up waits for them, and stops for one of another model.
        """
        self._inbox.put(partial(self._add_warm, Warm(model)))

    def cancel_warm(self, model: str) -> None:
        """Stop loading a model ahead; a run that loads it goes on."""
        self._inbox.put(partial(self._cancel_warm, model))

    def count_tokens(self, request: CompareRequest, timeout_s: float = 30.0) -> TokensCounted:
        """Tokenise in a process of its own; waits. Failure is in the answer's `error`."""
        return self._counter.count(request, timeout_s)

    def ask_tokens(self, request: CompareRequest) -> Future[TokensCounted]:
        """The same without waiting; cancel the answer to give it up."""
        return self._counter.ask(request)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel all jobs and end the worker; returns within the time, leaves no process."""
        deadline = time.monotonic() + timeout_s
        self._counter.close()
        self._inbox.put(partial(self._shut_down, timeout_s / 2))
        if self._thread.ident is not None:
            self._thread.join(max(0.1, deadline - time.monotonic()))
        if self._slot.worker is not None:  # the thread is stuck in on_reply
            self._slot.worker.kill()

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

    def _on_worker_reply(self, worker: WorkerProcess, reply: Reply) -> None:
        self._inbox.put(partial(self._take, worker, reply))

    def _on_worker_lost(self, worker: WorkerProcess) -> None:
        self._inbox.put(partial(self._replace, worker))

    def _until_deadline(self) -> float | None:
        at = self._slot.next_deadline()
        return None if at is None else max(0.0, at - time.monotonic())

    def _meet_deadlines(self) -> None:
        if reason := self._slot.meet_deadlines(time.monotonic()):
            self._after_loss(reason, worked=False)

    def _dispatch(self) -> None:
        """Hand over what comes next; a warm-up that the next job has no use for gives way."""
        slot = self._slot
        if slot.is_idle and (command := self._queue.take() or self._warms.take()):
            slot.hand(command)
        jobs = self._queue.waiting()
        if jobs and slot.task and slot.task.is_warm and not slot.task.loads_for(jobs[0].request):
            slot.stop("")

    def _cancel(self, job_id: str) -> None:
        if self._queue.remove(job_id):
            self._report(JobCancelled(job_id))
            self._dispatch()
        if self._slot.task is not None and self._slot.task.command.job_id == job_id:
            self._slot.stop("")

    def _add_warm(self, warm: Warm) -> None:
        told = self._warms.add(warm)
        if told is not None:
            self._report(told)
        self._dispatch()

    def _cancel_warm(self, model: str) -> None:
        if self._warms.remove(model):
            self._report(ModelStatus(model, False, f"Loading {model} was cancelled."))
        task = self._slot.task
        if task is not None and task.is_warm and task.model == model:
            self._slot.stop("")

    def _ping(self, answer: Future[bool]) -> None:
        if self._slot.worker is None or not self._slot.is_ready:
            answer.set_result(False)
            return
        self._pings.append(answer)
        self._slot.worker.send(Ping())

    def _answer_pings(self, *, alive: bool) -> None:
        for answer in self._pings:
            answer.set_result(alive)
        self._pings.clear()

    def _take(self, worker: WorkerProcess, reply: Reply) -> None:
        """One reply of a worker; what a replaced one or an ended task still says is dropped."""
        slot = self._slot
        if worker is not slot.worker:
            return
        slot.failed_starts = 0
        match reply:
            case WorkerReady():
                slot.is_ready = True
                self._dispatch()
            case Pong():
                self._answer_pings(alive=True)
            case ModelStatus():
                slot.loaded.pop(reply.model, None)
                if reply.ready:
                    slot.loaded[reply.model] = reply
                self._report(reply)
            case Within() | JobEvent() | JobDone() | JobFailed() | JobCancelled():
                if slot.task is not None and slot.task.command.job_id == reply.job_id:
                    self._take_of_task(slot.task, reply)

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
        task, self._slot.task = self._slot.task, None
        if task is not None and not task.is_warm:
            self._queue.done(end.job_id)
            self._report(end)

    def _replace(self, worker: WorkerProcess) -> None:
        """The worker is gone: end its task, start the next one."""
        if worker is self._slot.worker:
            LOGGER.warning("Worker lost: %s.", worker.exit_reason())
            self._after_loss(worker.exit_reason(), worked=worker.has_replied)

    def _after_loss(self, reason: str, *, worked: bool) -> None:
        slot = self._slot
        gone = slot.lost(worked=worked)
        self._answer_pings(alive=False)
        if slot.failed_starts and slot.task is None and (job := self._queue.take()) is not None:
            slot.task = Task(job, None)  # workers that cannot start fail the first job
        for status in gone:
            self._report(ModelStatus(status.model, False, _sentence(reason)))
        if slot.task is not None:
            # Of this nothing goes to others: it may name what somebody else wanted to load.
            self._end_lost(slot.task, _sentence(slot.task.reason_of_loss(reason)))

    def _end_lost(self, task: Task, sentence: str) -> None:
        if task.is_warm or not task.has_loaded:
            self._report(ModelStatus(task.model, False, sentence, failed=not task.is_cancelled))
            if task.is_hung:
                self._warms.refuse(task.model, sentence)
        self._end_task(task.lost(sentence))

    def _shut_down(self, timeout_s: float) -> None:
        self._closed = True
        worker, self._slot.worker = self._slot.worker, None
        if worker is not None:
            worker.stop(timeout_s)
        self._answer_pings(alive=False)
        if self._slot.task is not None:
            self._end_task(JobCancelled(self._slot.task.command.job_id))
        while (job := self._queue.take()) is not None:
            self._report(JobCancelled(job.job_id))

    def _report(self, reply: Reply) -> None:
        try:
            self._on_reply(reply)
        except Exception:
            LOGGER.exception("A reply of the worker could not be taken in.")


def _sentence(reason: str) -> str:
    return f"{reason[0].upper()}{reason[1:]}. {RESTARTS}"
