"""The app's side of the worker: the queue, the worker's life, what it reports. No torch."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import count
from typing import Concatenate, ParamSpec

from ckv_core.worker.counting import COUNT_RUNNER, TokenCounter
from ckv_core.worker.messages import (
    Cancel,
    Deadline,
    Job,
    JobEnd,
    JobEvent,
    LoadRequest,
    ModelStatus,
    Reply,
    WorkerReady,
)
from ckv_core.worker.process import ENGINE_RUNNER, WorkerProcess

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


@dataclass(slots=True)
class _Line:
    """The waiting jobs of one user."""

    turn: int  # of the first job; each further one is a turn later
    # Each with its number in the order of arrival.
    jobs: deque[tuple[int, Job]] = field(default_factory=deque)


class FairQueue:
    """Round after round each user has one turn, first come, first served within it; thread-safe.

    A user who comes new, or again with nothing waiting, joins the present round: however many jobs
    another has waiting, at most one of them is still ahead, beside those that run. All jobs of
    `owner` None are one user's, so without logins the order is that of arrival.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str | None, _Line] = {}
        self._arrivals = count()
        self._turn = 0
        self._running: list[str] = []

    def put(self, job: Job) -> None:
        """Add a job behind the others of its owner."""
        with self._lock:
            line = self._lines.setdefault(job.owner, _Line(self._turn))
            line.jobs.append((next(self._arrivals), job))

    def take(self) -> Job | None:
        """Hand out whose turn it is; counts as running until `done`."""
        with self._lock:
            jobs = self._in_order()
            if not jobs:
                return None
            line = self._lines[jobs[0].owner]
            self._turn = line.turn
            line.turn += 1
            line.jobs.popleft()
            self._running.append(jobs[0].job_id)
            # A line is as good as none if it is empty and its next job would join this round.
            self._lines = {
                owner: line
                for owner, line in self._lines.items()
                if line.jobs or line.turn > self._turn
            }
            return jobs[0]

    def done(self, job_id: str) -> None:
        """A job that was taken is over."""
        with self._lock:
            self._running.remove(job_id)

    def remove(self, job_id: str) -> bool:
        """Take a job out; False if it does not wait here. Its owner's others move up."""
        with self._lock:
            for line in self._lines.values():
                for entry in line.jobs:
                    if entry[1].job_id == job_id:
                        line.jobs.remove(entry)
                        return True
        return False

    def waiting(self) -> list[Job]:
        """As they will run."""
        with self._lock:
            return self._in_order()

    def order(self) -> tuple[str, ...]:
        """Ids of the running jobs, the first that began first, and of the waiting ones in order."""
        with self._lock:
            return (*self._running, *(job.job_id for job in self._in_order()))

    def _in_order(self) -> list[Job]:
        places = [
            (line.turn + later, arrival, job)
            for line in self._lines.values()
            for later, (arrival, job) in enumerate(line.jobs)
        ]
        return [job for *_, job in sorted(places, key=lambda place: place[:2])]


# --- the client ---------------------------------------------------------------------------

LOGGER = logging.getLogger(__name__)
PAUSE_S = 2.0  # before another worker is started after one that could not start
START_S = 300.0  # importing the engine, on a slow disk
WARM = "warm"  # id of a job that loads a model ahead


P = ParamSpec("P")


def _posted(
    step: Callable[Concatenate["WorkerClient", P], None],
) -> Callable[Concatenate["WorkerClient", P], None]:
    """A method for any thread, which the client's own thread takes as a step."""

    @wraps(step)
    def post(self: "WorkerClient", /, *values: P.args, **named: P.kwargs) -> None:
        self._inbox.put(partial(step, self, *values, **named))

    return post


class WorkerClient:
    """Keeps a worker alive and hands it one job at a time, else a model to load ahead.

    The queue is here, so a lost worker loses the job that it ran only. All state but the queue
    belongs to one thread, which takes steps from an inbox; public methods only post such steps
    and never block, but for `close`.
    """

    def __init__(
        self,
        on_reply: Callable[[Reply], None],
        *,
        make_worker: Callable[..., WorkerProcess] = WorkerProcess,
        runner: str = ENGINE_RUNNER,
        counter: str = COUNT_RUNNER,
        cancel_grace_s: float = 10.0,
    ) -> None:
        """Prepare; `start` starts.

        Args:
            on_reply: gets each ModelStatus, and what belongs to a job that was submitted without
                a function of its own, one reply at a time, in the client's thread.
            make_worker: starts a worker; `zero.zero_worker` has another kind.
            runner: `module:attribute` of the engine, imported in the worker only.
            counter: the same of what counts tokens, in a process of its own.
            cancel_grace_s: a task that has not stopped by then costs the worker its life.
        """
        self._on_reply = on_reply
        self._make_worker, self._runner = make_worker, runner
        self._cancel_grace_s = cancel_grace_s
        self.counter = TokenCounter(partial(WorkerClient, runner=counter))
        self._queue, self._previews = FairQueue(), FairQueue()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker-client", daemon=True)
        self._closed = False
        self._listeners: dict[str, Callable[[Reply], None]] = {}  # by job
        self._callers: dict[str, Context] = {}  # where each job was submitted
        self._wish: Job | None = None  # the model to load ahead
        self._worker: WorkerProcess | None = None
        self._is_ready = False  # the worker takes jobs
        self._task: Task | None = None  # what the worker does
        self._loaded: dict[str, ModelStatus] = {}  # models in the worker
        self._start_at = self._started_by = 0.0

    # --- public, any thread -------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker; None between two."""
        worker = self._worker
        return worker.pid if worker else None

    def submit(self, job: Job, on_reply: Callable[[Reply], None] | None = None) -> None:
        """Queue a job; users take turns, and previews come after all others.

        Its JobEvents, then exactly one JobEnd, go to `on_reply`.
        """
        if on_reply is not None:
            self._listeners[job.job_id] = on_reply
        self._callers[job.job_id] = copy_context()
        self._line_of(job).put(job)
        self._inbox.put(self._dispatch)

    def order(self) -> tuple[str, ...]:
        """Ids of the jobs that run, if any do, and of the waiting ones as they will run."""
        return self._queue.order()

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel all jobs and end the worker; returns within the time, leaves no process."""
        deadline = time.monotonic() + timeout_s
        self.counter.close()
        self._inbox.put(partial(self._shut_down, timeout_s / 2))
        if self._thread.ident is not None:
            self._thread.join(max(0.1, deadline - time.monotonic()))
        if self._worker is not None:  # the thread is stuck in on_reply
            self._worker.kill()

    # --- the client's own thread --------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            self._meet_deadlines(time.monotonic())
            at = self._next_deadline()
            try:
                step = self._inbox.get(
                    timeout=None if at is None else max(0.0, at - time.monotonic())
                )
            except queue.Empty:
                continue
            try:
                step()
            except Exception:  # the thread serves all runs and must live on
                LOGGER.exception("A step of the worker client failed.")

    def _next_deadline(self) -> float | None:
        if self._worker is None:
            return self._start_at
        if not self._is_ready:
            return self._started_by
        return self._task.next_deadline() if self._task else None

    def _meet_deadlines(self, now: float) -> None:
        """Start a worker or end one, where it is time."""
        if self._worker is None:
            if now >= self._start_at:
                self._start_worker(now)
        elif not self._is_ready:
            if now >= self._started_by:
                LOGGER.warning("The worker did not start in time; ending it.")
                self._started_by = now + START_S
                self._worker.kill()
        elif self._task is not None and self._task.must_die(now):
            LOGGER.warning("A task hangs or did not stop; ending its worker.")
            self._worker.kill()

    def _start_worker(self, now: float) -> None:
        self._started_by = now + START_S
        try:
            self._worker = self._make_worker(
                self._runner,
                lambda worker, reply: self._inbox.put(partial(self._take, worker, reply)),
                lambda worker: self._inbox.put(partial(self._lose, worker)),
            )
        except Exception as error:  # no process, no thread, no memory: try again later
            LOGGER.exception("The worker process could not be started.")
            self._after_loss(f"the worker process could not be started ({error})", worked=False)

    def _dispatch(self) -> None:
        """Hand over what comes next.

        A preview gives way to it, and a load ahead of another model.
        """
        if self._is_ready and self._task is None and self._worker is not None:
            job, wish = self._next(), self._wish
            if job is None and wish is not None:
                job, self._wish = wish, None
            if job is not None:
                self._task = Task(job)
                self._callers.get(job.job_id, copy_context()).run(self._worker.send, job)
        jobs, task = self._queue.waiting(), self._task
        if jobs and task and task.job.gives_way and not task.is_stopping:
            self._stop_task()
            task.comes_again = True
        elif jobs and task and task.job.loads_ahead and not task.job.loads_as(jobs[0]):
            self._stop_task()

    def _stop_task(self) -> None:
        if self._task is not None and self._worker is not None and not self._task.is_stopping:
            self._task.stop(self._cancel_grace_s)
            self._worker.send(Cancel(self._task.job.job_id))

    @_posted
    def cancel(self, job_id: str) -> None:
        """Remove a queued job, stop a running one; nothing if it is over."""
        if self._queue.remove(job_id) or self._previews.remove(job_id):
            self._report(JobEnd(job_id, "cancelled"))
            self._dispatch()
        if self._task is not None and self._task.job.job_id == job_id:
            self._task.comes_again = False
            self._stop_task()

    @_posted
    def warm(self, model: str) -> None:
        """Load a model ahead of its first run, in place of one that still waits for that.

        ModelStatus replies report it. Runs come first: a load waits for them, and stops for one of
        another model.
        """
        if self._wish is not None and (before := self._wish.request.model) != model:
            self._report(ModelStatus(before, False, f"{before} is loaded when a run needs it."))
        self._wish = Job(WARM, LoadRequest(model))
        self._dispatch()

    @_posted
    def cancel_warm(self, model: str) -> None:
        """Stop loading a model ahead; the load of a run is not stopped."""
        if self._wish is not None and self._wish.request.model == model:
            self._wish = None
            self._report(ModelStatus(model, False, f"Loading {model} was cancelled."))
        job = self._task.job if self._task else None
        if job is not None and job.loads_ahead and job.request.model == model:
            self._stop_task()

    def _take(self, worker: WorkerProcess, reply: Reply) -> None:
        """One reply of a worker; those of a replaced one or of an ended task are dropped."""
        if worker is not self._worker:
            return
        task = self._task
        match reply:
            case WorkerReady():
                self._is_ready = True
                self._dispatch()
            case ModelStatus():
                self._loaded.pop(reply.model, None)
                if reply.ready:
                    self._loaded[reply.model] = reply
                self._report(reply)
            case Deadline() | JobEvent() | JobEnd() if task and task.job.job_id == reply.job_id:
                self._take_of_task(task, reply)

    def _take_of_task(self, task: Task, reply: Deadline | JobEvent | JobEnd) -> None:
        match reply:
            case Deadline():
                task.next_step(reply)
            case JobEvent():
                self._report(reply)
            case JobEnd():
                self._end_task(task.end(reply))
                self._dispatch()

    def _end_task(self, end: JobEnd) -> None:
        task, self._task = self._task, None
        if task is None or task.job.loads_ahead:
            return
        line = self._line_of(task.job)
        line.done(end.job_id)
        if task.comes_again and end.state == "cancelled":
            line.put(task.job)
        else:
            self._report(end)

    def _next(self) -> Job | None:
        return self._queue.take() or self._previews.take()

    def _line_of(self, job: Job) -> FairQueue:
        return self._previews if job.gives_way else self._queue

    def _lose(self, worker: WorkerProcess) -> None:
        """End the task of a worker that is gone, and start the next worker."""
        if worker is self._worker:
            LOGGER.warning("Worker lost: %s.", worker.exit_reason())
            self._after_loss(worker.exit_reason(), worked=worker.has_replied)

    def _after_loss(self, reason: str, *, worked: bool) -> None:
        self._worker, self._is_ready = None, False
        if not worked and self._task is None and (job := self._next()) is not None:
            self._task = Task(job)  # a worker that cannot start fails the first job
        self._start_at = time.monotonic() + (0.0 if worked else PAUSE_S)
        gone, self._loaded = self._loaded, {}
        for model in gone:
            self._report(ModelStatus(model, False, _sentence(reason)))
        task = self._task
        if task is None:
            return
        # Nothing of this goes to others: it may name what another user wanted to load.
        sentence, model = _sentence(task.reason_of_loss(reason)), task.job.request.model
        if task.job.loads_ahead or not task.has_loaded:
            self._report(ModelStatus(model, False, sentence, failed=not task.is_stopping))
        if task.job.tries > 1 and not (task.is_hung or task.is_stopping):
            self._task = None
            self._queue.done(task.job.job_id)
            self._queue.put(replace(task.job, tries=task.job.tries - 1))
        else:
            self._end_task(task.lost(sentence))

    def _shut_down(self, timeout_s: float) -> None:
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop(timeout_s)
        if self._task is not None:
            self._end_task(JobEnd(self._task.job.job_id, "cancelled"))
        while (job := self._next()) is not None:
            self._report(JobEnd(job.job_id, "cancelled"))

    def _report(self, reply: Reply) -> None:
        on_reply = self._on_reply
        if isinstance(reply, JobEvent):
            on_reply = self._listeners.get(reply.job_id, on_reply)
        elif isinstance(reply, JobEnd):
            self._callers.pop(reply.job_id, None)
            on_reply = self._listeners.pop(reply.job_id, on_reply)
        try:
            on_reply(reply)
        except Exception:
            LOGGER.exception("A reply of the worker could not be taken in.")


def _sentence(reason: str) -> str:
    return f"{reason[0].upper()}{reason[1:]}. {RESTARTS}"
