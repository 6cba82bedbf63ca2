"""The loop that owns the model, for every backend; knows neither pipes nor torch."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from ckv_core.config import CompareRequest
from ckv_core.errors import OUT_OF_MEMORY, CkvError, RunCancelledError, is_out_of_memory
from ckv_core.events import Progress, RunEvent, RunFinished
from ckv_core.records import ModelInfo
from ckv_core.worker.messages import (
    Cancel,
    Command,
    CountTokens,
    Job,
    JobCancelled,
    JobDone,
    JobEvent,
    JobFailed,
    ModelStatus,
    Reply,
    Shutdown,
    TokensCounted,
    Warm,
)

LOGGER = logging.getLogger(__name__)


class Channel(Protocol):
    """Both directions of a connection, as `multiprocessing` shapes it."""

    def send(self, obj: Any, /) -> None:
        """Send one message.

        Raises:
            OSError: the other end is gone.
        """

    def recv(self) -> Any:
        """Wait for one message.

        Raises:
            EOFError: the other end is gone.
        """


class Runner(Protocol):
    """What the loop needs of an engine; `runner.EngineRunner` is the real one."""

    def load(self, model: str, device: str, dtype: str, report: Callable[[str], None]) -> ModelInfo:
        """Have this model in memory; `report` gets one sentence per step and may raise.

        Raises:
            ModelError: it cannot be loaded.
        """

    def compare(
        self, request: CompareRequest, should_stop: Callable[[], bool]
    ) -> Iterator[RunEvent]:
        """Run on the model that `load` brought in last.

        Raises:
            RunCancelledError: `should_stop` turned true.
            CkvError: the request cannot be served.
        """

    def count_tokens(self, request: CompareRequest) -> tuple[int, int, int]:
        """Prompt tokens, compressed tokens, context limit; called from a second thread.

        Raises:
            CkvError: the text or the model cannot be used.
        """

    def release(self) -> None:
        """Drop all models, after memory ran out."""


class WorkerLoop:
    """Serves one channel until `Shutdown` or its end.

    Three threads: one reads commands (so that a cancel arrives while a job runs), one counts
    tokens (so that a slow count delays no cancel), the caller's runs jobs one after another.
    """

    def __init__(
        self,
        channel: Channel,
        make_runner: Callable[[], Runner],
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """Prepare; nothing runs before `run`.

        Args:
            channel: where commands come from and replies go to.
            make_runner: called once in the thread of `run`; may take seconds.
            on_lost: called when the other end is gone, instead of an orderly stop.
        """
        self._channel = channel
        self._make_runner = make_runner
        self._on_lost = on_lost or self._stop_all
        self._send_lock = threading.Lock()
        self._work: queue.SimpleQueue[Job | Warm | Shutdown] = queue.SimpleQueue()
        self._counts: queue.SimpleQueue[CountTokens] = queue.SimpleQueue()
        self._stops_lock = threading.Lock()
        self._waiting: set[str] = set()
        self._running: tuple[str, threading.Event] | None = None

    def run(self) -> None:
        """Serve until told to stop."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        runner = self._make_runner()
        threading.Thread(
            target=self._answer_counts, args=(runner,), name="counts", daemon=True
        ).start()
        while True:
            command = self._work.get()
            match command:
                case Job():
                    self._run_job(runner, command)
                case Warm():
                    self._warm(runner, command)
                case Shutdown():
                    return

    # --- commands ---------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                self._route(self._channel.recv())
        except (EOFError, OSError):
            self._on_lost()
        except Exception:
            LOGGER.exception("A command could not be read.")
            self._on_lost()

    def _route(self, command: Command) -> None:
        match command:
            case Job():
                with self._stops_lock:
                    self._waiting.add(command.job_id)
                self._work.put(command)
            case Cancel():
                self._cancel(command.job_id)
            case CountTokens():
                self._counts.put(command)
            case Warm():
                self._work.put(command)
            case Shutdown():
                self._stop_all()

    def _cancel(self, job_id: str) -> None:
        """Stop a running job at its next step; one that waits behind a load at once."""
        with self._stops_lock:
            if self._running is not None and self._running[0] == job_id:
                self._running[1].set()
            waits = job_id in self._waiting
            self._waiting.discard(job_id)
        if waits:
            self._send(JobCancelled(job_id))

    def _stop_all(self) -> None:
        with self._stops_lock:
            self._waiting.clear()
            if self._running is not None:
                self._running[1].set()
        self._work.put(Shutdown())

    # --- jobs and models ----------------------------------------------------------------------

    def _run_job(self, runner: Runner, job: Job) -> None:
        stop = threading.Event()
        with self._stops_lock:
            if job.job_id not in self._waiting:
                return
            self._waiting.discard(job.job_id)
            self._running = (job.job_id, stop)
        reply = self._outcome(runner, job, stop)
        with self._stops_lock:
            self._running = None
        if isinstance(reply, JobFailed) and reply.message == OUT_OF_MEMORY:
            runner.release()
        self._send(reply)

    def _outcome(self, runner: Runner, job: Job, stop: threading.Event) -> Reply:
        try:
            self._stream(runner, job, stop)
        except RunCancelledError:
            return JobCancelled(job.job_id)
        except Exception as error:
            return JobFailed(job.job_id, _sentence(error, "The run"))
        return JobDone(job.job_id)

    def _stream(self, runner: Runner, job: Job, stop: threading.Event) -> None:
        """Load the model, then forward the engine's events with the time the load took."""
        request = job.request

        def report(step: str) -> None:
            if stop.is_set():
                raise RunCancelledError
            self._send(JobEvent(job.job_id, Progress("load", None, step)))

        report(f"Loading {request.model}.")
        started = time.perf_counter()
        self._load(runner, Warm(request.model, request.device, request.dtype), report)
        load_ms = (time.perf_counter() - started) * 1000
        for event in runner.compare(request, stop.is_set):
            if stop.is_set():  # not every stage of an engine asks by itself
                raise RunCancelledError
            timed = _with_load(event, load_ms) if isinstance(event, RunFinished) else event
            self._send(JobEvent(job.job_id, timed))

    def _warm(self, runner: Runner, command: Warm) -> None:
        try:
            self._load(runner, command, lambda _: None)
        except Exception as error:
            LOGGER.info("Not loaded: %s", error)

    def _load(self, runner: Runner, wanted: Warm, report: Callable[[str], None]) -> None:
        def report_step(step: str) -> None:
            report(step)
            self._send(ModelStatus(wanted.model, False, step))

        try:
            info = runner.load(wanted.model, wanted.device, wanted.dtype, report_step)
        except RunCancelledError:
            self._send(ModelStatus(wanted.model, False, f"Loading {wanted.model} was cancelled."))
            raise
        except Exception as error:
            sentence = _sentence(error, f"Loading {wanted.model}")
            self._send(ModelStatus(wanted.model, False, sentence, failed=True))
            raise
        ready = f"{wanted.model} is ready on {info.device} in {info.dtype}."
        self._send(ModelStatus(wanted.model, True, ready))

    def _answer_counts(self, runner: Runner) -> None:
        while True:
            query = self._counts.get()
            try:
                counted = TokensCounted(query.query_id, *runner.count_tokens(query.request))
            except Exception as error:
                sentence = _sentence(error, "Counting tokens")
                counted = TokensCounted(query.query_id, 0, 0, 0, sentence)
            self._send(counted)

    def _send(self, reply: Reply) -> None:
        try:
            with self._send_lock:
                self._channel.send(reply)
        except OSError:
            self._on_lost()


def _with_load(event: RunFinished, load_ms: float) -> RunFinished:
    return replace(event, timings_ms={**event.timings_ms, "load": load_ms})


def _sentence(error: Exception, what: str) -> str:
    """What the user reads; the traceback of an unexpected error goes to the log."""
    if isinstance(error, CkvError):
        return str(error)
    LOGGER.error("%s failed.", what, exc_info=error)
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    first_line = (str(error).splitlines() or [""])[0][:200]
    return f"{what} failed ({type(error).__name__}: {first_line}); the log has the details."
