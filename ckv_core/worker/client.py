"""The app's side of the worker: a queue, cancel, restart after a crash. Imports no torch."""

import logging
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from ckv_core.config import CompareRequest
from ckv_core.worker.messages import (
    Cancel,
    CountTokens,
    Job,
    JobCancelled,
    JobDone,
    JobEvent,
    JobFailed,
    ModelStatus,
    Reply,
    TokensCounted,
    Warm,
)
from ckv_core.worker.process import ENGINE_RUNNER, WorkerProcess

LOGGER = logging.getLogger(__name__)
FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 30.0
RESTARTS = "A new worker starts by itself."
AGAIN = "Run it again; if that repeats, with a shorter context."
DID_NOT_STOP = "the worker process was ended because its run did not stop on request"


class WorkerClient:
    """Keeps one worker alive and hands it one job at a time.

    The queue is here, so a crash loses the running job only. All state belongs to one thread,
    which takes steps from an inbox; public methods only post such steps and never block,
    but for `count_tokens` and `close`.
    """

    def __init__(
        self,
        on_reply: Callable[[Reply], None],
        *,
        runner: str = ENGINE_RUNNER,
        cancel_grace_s: float = 10.0,
    ) -> None:
        """Prepare; `start` starts.

        Args:
            on_reply: gets JobEvent, JobDone, JobFailed, JobCancelled and ModelStatus, one at a
                time, in the client's thread. Every submitted job ends with exactly one of
                Done, Failed and Cancelled.
            runner: `module:attribute` of the engine, imported in the worker only.
            cancel_grace_s: a running job that has not stopped by then costs the worker its life.
        """
        self._on_reply = on_reply
        self._runner = runner
        self._cancel_grace_s = cancel_grace_s
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker-client", daemon=True)
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._kill_at: float | None = None
        self._cancelling = False
        self._worker: WorkerProcess | None = None
        self._start_at = 0.0
        self._failed_starts = 0
        self._warm: Warm | None = None
        self._status: ModelStatus | None = None
        self._counts: dict[str, tuple[CountTokens, Future[TokensCounted]]] = {}
        self._closed = False

    # --- public, any thread -------------------------------------------------------------------

    def start(self) -> None:
        """Start the worker in the background."""
        self._thread.start()

    @property
    def worker_pid(self) -> int | None:
        """Process id of the present worker, None between two."""
        worker = self._worker
        return worker.pid if worker else None

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._inbox.put(partial(self._enqueue, job))

    def cancel(self, job_id: str) -> None:
        """Remove a queued job, stop a running one; nothing if it is over."""
        self._inbox.put(partial(self._cancel, job_id))

    def warm(self, model: str, device: str = "auto", dtype: str = "auto") -> None:
        """Load a model ahead of its first run; ModelStatus replies tell how it goes."""
        self._inbox.put(partial(self._send_warm, Warm(model, device, dtype)))

    def count_tokens(self, request: CompareRequest, timeout_s: float = 30.0) -> TokensCounted:
        """Tokenise in the worker; waits for the answer. Failure is in the answer's `error`."""
        query = CountTokens(uuid.uuid4().hex, request)
        answer: Future[TokensCounted] = Future()
        self._inbox.put(partial(self._ask, query, answer))
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            self._inbox.put(partial(self._forget, query.query_id))
            sentence = f"Counting took longer than {timeout_s:g} s; the run will count again."
            return TokensCounted(query.query_id, 0, 0, 0, sentence)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel all jobs and end the worker; returns within the time, leaves no process."""
        deadline = time.monotonic() + timeout_s
        self._inbox.put(partial(self._shut_down, timeout_s / 2))
        if self._thread.ident is not None:
            self._thread.join(max(0.1, deadline - time.monotonic()))
        if self._worker is not None:  # the thread is stuck in on_reply
            self._worker.kill()

    # --- the client's own thread ------------------------------------------------------------------

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
        times = [] if self._kill_at is None else [self._kill_at]
        if self._worker is None:
            times.append(self._start_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _meet_deadlines(self) -> None:
        now = time.monotonic()
        if self._worker is None:
            if now >= self._start_at:
                self._start_worker()
        elif self._kill_at is not None and now >= self._kill_at:
            LOGGER.warning("The job did not stop on request; ending its worker.")
            self._kill_at = None
            self._worker.kill()

    def _start_worker(self) -> None:
        try:
            self._worker = WorkerProcess(
                self._runner,
                lambda worker, reply: self._inbox.put(partial(self._take, worker, reply)),
                lambda worker: self._inbox.put(partial(self._replace, worker)),
            )
        except Exception as error:  # no process, no thread, no memory: try again later
            LOGGER.exception("The worker process could not be started.")
            self._running = self._queue.popleft() if self._queue else None
            self._after_loss(f"the worker process could not be started ({error})", worked=False)
            return
        if self._warm is not None:
            self._worker.send(self._warm)
        for query, _ in self._counts.values():
            self._worker.send(query)
        self._dispatch()

    def _dispatch(self) -> None:
        if self._worker is not None and self._running is None and self._queue:
            self._running = self._queue.popleft()
            self._worker.send(self._running)

    def _enqueue(self, job: Job) -> None:
        self._queue.append(job)
        self._dispatch()

    def _cancel(self, job_id: str) -> None:
        if self._running is not None and self._running.job_id == job_id:
            if not self._cancelling and self._worker is not None:
                self._cancelling = True
                self._kill_at = time.monotonic() + self._cancel_grace_s
                self._worker.send(Cancel(job_id))
            return
        for job in self._queue:
            if job.job_id == job_id:
                self._queue.remove(job)
                self._report(JobCancelled(job_id))
                return

    def _send_warm(self, warm: Warm) -> None:
        self._warm = warm
        if self._worker is not None:
            self._worker.send(warm)

    def _ask(self, query: CountTokens, answer: Future[TokensCounted]) -> None:
        self._counts[query.query_id] = (query, answer)
        if self._worker is not None:
            self._worker.send(query)

    def _forget(self, query_id: str) -> None:
        self._counts.pop(query_id, None)

    def _take(self, worker: WorkerProcess, reply: Reply) -> None:
        """One reply of the worker; what a replaced worker or an ended job still says is dropped."""
        if worker is not self._worker:
            return
        self._failed_starts = 0
        match reply:
            case TokensCounted():
                _, answer = self._counts.pop(reply.query_id, (None, None))
                if answer is not None:
                    answer.set_result(reply)
            case ModelStatus():
                self._warm, self._status = None, reply
                self._report(reply)
            case JobEvent():
                if self._running is not None and self._running.job_id == reply.job_id:
                    self._report(reply)
            case JobDone() | JobFailed() | JobCancelled():
                if self._running is not None and self._running.job_id == reply.job_id:
                    self._end_job(reply)

    def _end_job(self, reply: Reply) -> None:
        self._running, self._kill_at, self._cancelling = None, None, False
        self._report(reply)
        self._dispatch()

    def _replace(self, worker: WorkerProcess) -> None:
        """The worker is gone: end its job, start the next one."""
        if worker is not self._worker:
            return
        self._worker = None
        reason = DID_NOT_STOP if self._cancelling else worker.exit_reason()
        self._after_loss(reason, worked=worker.has_replied)

    def _after_loss(self, reason: str, *, worked: bool) -> None:
        LOGGER.warning("Worker lost: %s.", reason)
        self._failed_starts = 0 if worked else self._failed_starts + 1
        wait_s = 0.0
        if self._failed_starts:
            wait_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (self._failed_starts - 1))
        self._start_at = time.monotonic() + wait_s
        sentence = f"{reason[0].upper()}{reason[1:]}. {RESTARTS}"
        self._fail_counts(sentence)
        if self._status is not None and not self._status.failed:
            self._status = ModelStatus(
                self._status.model, False, sentence, failed=not self._status.ready
            )
            self._report(self._status)
        if self._running is not None:
            job_id = self._running.job_id
            cancelled = JobCancelled(job_id) if self._cancelling else None
            self._end_job(cancelled or JobFailed(job_id, f"{sentence} {AGAIN}"))

    def _fail_counts(self, sentence: str) -> None:
        for query, answer in self._counts.values():
            answer.set_result(TokensCounted(query.query_id, 0, 0, 0, sentence))
        self._counts.clear()

    def _shut_down(self, timeout_s: float) -> None:
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop(timeout_s)
        self._fail_counts("The app is closing.")
        for job in [self._running, *self._queue]:
            if job is not None:
                self._report(JobCancelled(job.job_id))
        self._queue.clear()
        self._running = None

    def _report(self, reply: Reply) -> None:
        try:
            self._on_reply(reply)
        except Exception:
            LOGGER.exception("A reply of the worker could not be taken in.")
