"""The app's side of the workers: a queue, who does what, and what they tell. No torch."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker.counting import COUNT_RUNNER, TokenCounter
from ckv_core.worker.fair_queue import FairQueue, Warms
from ckv_core.worker.lane import Lane, Worker
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
from ckv_core.worker.task import RESTARTS, Task

LOGGER = logging.getLogger(__name__)
OnReply = Callable[[Any, Reply], None]
OnLost = Callable[[Any], None]
Start = Callable[[str, OnReply, OnLost], Worker]  # of a runner's worker


def own_process(runner: str, on_reply: OnReply, on_lost: OnLost) -> WorkerProcess:
    """A worker on this machine."""
    return WorkerProcess(partial(worker_main, runner=runner), on_reply, on_lost)


class WorkerClient:
    """Keeps workers alive and hands each one task at a time: a job, else a model to warm up.

    One worker, unless a cluster has room for more; those beyond the first start when jobs wait.
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
        starts: Sequence[Start] = (own_process,),
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
            starts: one a worker, such as `own_process`.
        """
        self._on_reply = on_reply
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker-client", daemon=True)
        self._queue = FairQueue()
        self._warms = Warms()
        self._lanes = [
            Lane(partial(self._start, start, runner), cancel_grace_s, run_limit_s)
            for start in starts
        ]
        self._lanes[0].wake()
        self._moved: set[str] = set()  # jobs that were handed to two workers
        self._pings: list[Future[bool]] = []
        self._closed = False
        self._counter = TokenCounter(counter)

    # --- public, any thread -------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def workers(self) -> int:
        """How many there are at present."""
        return sum(lane.worker is not None for lane in self._lanes)

    @property
    def worker_pid(self) -> int | None:
        """Process id of the first worker; None between two, and where it is an actor."""
        worker = self._lanes[0].worker
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
        """Cancel all jobs and end the workers; returns within the time, leaves no process."""
        deadline = time.monotonic() + timeout_s
        self._counter.close()
        self._inbox.put(partial(self._shut_down, timeout_s / 2))
        if self._thread.ident is not None:
            self._thread.join(max(0.1, deadline - time.monotonic()))
        for lane in self._lanes:
            if lane.worker is not None:  # the thread is stuck in on_reply
                lane.worker.kill()

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

    def _start(self, start: Start, runner: str, lane: Lane) -> Worker:
        return start(
            runner,
            lambda worker, reply: self._inbox.put(partial(self._take, lane, worker, reply)),
            lambda worker: self._inbox.put(partial(self._replace, lane, worker)),
        )

    def _until_deadline(self) -> float | None:
        times = [at for lane in self._lanes if (at := lane.next_deadline()) is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _meet_deadlines(self) -> None:
        for lane in self._lanes:
            if reason := lane.meet_deadlines(time.monotonic()):
                self._after_loss(lane, reason, worked=False)

    def _dispatch(self) -> None:
        """Hand over what comes next, each to the idle worker that suits it best."""
        while idle := [lane for lane in self._lanes if lane.is_idle]:
            command = self._queue.take() or self._warms.take()
            if command is None:
                return
            max(idle, key=lambda lane: lane.rank(command)).hand(command)
        if jobs := self._queue.waiting():
            self._make_room(jobs)

    def _make_room(self, jobs: Sequence[Job]) -> None:
        """Nobody is idle: let a warm-up go that the next job has no use for, and wake others."""
        warming = [lane.task for lane in self._lanes if lane.task and lane.task.is_warm]
        if not any(task.loads_for(jobs[0].request) for task in warming):
            for lane in self._lanes:
                if lane.task in warming:
                    lane.stop("")
                    break
        starting = sum(not lane.is_asleep and not lane.is_ready for lane in self._lanes)
        asleep = [lane for lane in self._lanes if lane.is_asleep]
        for lane in asleep[: max(0, len(jobs) - starting - len(warming))]:
            lane.wake()

    def _cancel(self, job_id: str) -> None:
        if self._queue.remove(job_id):
            self._report(JobCancelled(job_id))
            self._dispatch()
        for lane in self._lanes:
            if lane.task is not None and lane.task.command.job_id == job_id:
                lane.stop("")

    def _add_warm(self, warm: Warm) -> None:
        told = self._warms.add(warm)
        if told is not None:
            self._report(told)
        self._dispatch()

    def _cancel_warm(self, model: str) -> None:
        if self._warms.remove(model):
            self._report(ModelStatus(model, False, f"Loading {model} was cancelled."))
        for lane in self._lanes:
            if lane.task is not None and lane.task.is_warm and lane.task.model == model:
                lane.stop("")

    def _ping(self, answer: Future[bool]) -> None:
        ready = [lane.worker for lane in self._lanes if lane.worker and lane.is_ready]
        if not ready:
            answer.set_result(False)
            return
        self._pings.append(answer)
        for worker in ready:
            worker.send(Ping())

    def _answer_pings(self, *, alive: bool) -> None:
        for answer in self._pings:
            answer.set_result(alive)
        self._pings.clear()

    def _take(self, lane: Lane, worker: Worker, reply: Reply) -> None:
        """One reply of a worker; what a replaced one or an ended task still says is dropped."""
        if worker is not lane.worker:
            return
        lane.failed_starts = 0
        match reply:
            case WorkerReady():
                lane.is_ready = True
                self._dispatch()
            case Pong():
                self._answer_pings(alive=True)
            case ModelStatus():
                lane.loaded.pop(reply.model, None)
                if reply.ready:
                    lane.loaded[reply.model] = reply
                self._tell(reply)
            case Within() | JobEvent() | JobDone() | JobFailed() | JobCancelled():
                if lane.task is not None and lane.task.command.job_id == reply.job_id:
                    self._take_of_task(lane, lane.task, reply)

    def _tell(self, status: ModelStatus) -> None:
        """Report a model; whatever one worker does with it, it is ready while another has it."""
        ready = (lane.loaded[status.model] for lane in self._lanes if status.model in lane.loaded)
        self._report(status if status.ready else next(ready, status))

    def _take_of_task(
        self, lane: Lane, task: Task, reply: Within | JobEvent | JobDone | JobFailed | JobCancelled
    ) -> None:
        if isinstance(reply, Within):
            task.goes_on(reply)
        elif isinstance(reply, JobEvent):
            task.has_begun()
            self._report(reply)
        else:
            self._end_task(lane, task.end(reply))
            self._dispatch()

    def _end_task(self, lane: Lane, end: JobDone | JobFailed | JobCancelled) -> None:
        task, lane.task = lane.task, None
        if task is not None and not task.is_warm:
            self._moved.discard(end.job_id)
            self._queue.done(end.job_id)
            self._report(end)

    def _replace(self, lane: Lane, worker: Worker) -> None:
        """A worker is gone: end its task, start the next one."""
        if worker is lane.worker:
            LOGGER.warning("Worker lost: %s.", worker.exit_reason())
            self._after_loss(lane, worker.exit_reason(), worked=worker.has_replied)

    def _after_loss(self, lane: Lane, reason: str, *, worked: bool) -> None:
        gone = lane.lost(worked=worked)
        if not any(each.is_ready for each in self._lanes):
            self._answer_pings(alive=False)
        hopeless = lane.failed_starts and not any(each.may_serve for each in self._lanes)
        if hopeless and lane.task is None and (job := self._queue.take()) is not None:
            lane.task = Task(job, None)  # workers that cannot start fail the first job
        for status in gone:
            self._tell(ModelStatus(status.model, False, _sentence(reason)))
        if lane.task is not None and not self._move(lane, lane.task):
            # Of this nothing goes to others: it may name what somebody else wanted to load.
            self._end_lost(lane, lane.task, _sentence(lane.task.reason_of_loss(reason)))

    def _move(self, lane: Lane, task: Task) -> bool:
        """Whether a job waits for another worker, once, as the lost one has said nothing of it.

        That an idle actor, or its machine, is gone is noticed late.
        """
        job, others = task.command, any(each.may_serve for each in self._lanes)
        if isinstance(job, Warm) or task.was_heard or task.is_stopping or not others:
            return False
        if job.job_id in self._moved:
            return False
        self._moved.add(job.job_id)
        lane.task = None
        self._queue.done(job.job_id)
        self._queue.put(job)
        self._dispatch()
        return True

    def _end_lost(self, lane: Lane, task: Task, sentence: str) -> None:
        if task.is_warm or not task.has_loaded:
            self._tell(ModelStatus(task.model, False, sentence, failed=not task.is_cancelled))
            if task.is_hung:
                self._warms.refuse(task.model, sentence)
        self._end_task(lane, task.lost(sentence))

    def _shut_down(self, timeout_s: float) -> None:
        self._closed = True
        for lane in self._lanes:
            worker, lane.worker = lane.worker, None
            if worker is not None:
                worker.stop(timeout_s)
        self._answer_pings(alive=False)
        for lane in self._lanes:
            if lane.task is not None:
                self._end_task(lane, JobCancelled(lane.task.command.job_id))
        while (job := self._queue.take()) is not None:
            self._report(JobCancelled(job.job_id))

    def _report(self, reply: Reply) -> None:
        try:
            self._on_reply(reply)
        except Exception:
            LOGGER.exception("A reply of the worker could not be taken in.")


def _sentence(reason: str) -> str:
    return f"{reason[0].upper()}{reason[1:]}. {RESTARTS}"
