"""The loop in the process that owns the model. No torch."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Protocol

from ckv_core.errors import (
    OUT_OF_MEMORY,
    CkvError,
    ModelError,
    RunCancelledError,
    first_line,
    is_device_lost,
    is_out_of_memory,
)
from ckv_core.methods import plug_ins
from ckv_core.methods.plug_ins import STEP, fault, packages_of
from ckv_core.models.steps import STALL_S, Report, Step
from ckv_core.records.events import Progress, RunEvent, RunFinished
from ckv_core.records.work_requests import WorkRequest, parts_of
from ckv_core.worker.messages import (
    Cancel,
    Command,
    Deadline,
    Job,
    JobEnd,
    JobEvent,
    LoadRequest,
    ModelStatus,
    Reply,
    Shutdown,
    WorkerReady,
)

LOGGER = logging.getLogger(__name__)
DEVICE_LOST = (
    "The GPU reported an error after which it computes nothing more in this process, so a new "
    "worker starts; run it again. If that repeats, choose device cpu."
)


class Runner(Protocol):
    """What the loop needs of an engine; `runner.EngineRunner` is the real one.

    Attributes:
        act: what `run` does, as a sentence's beginning.
    """

    act: str

    def load(self, model: str, device: str, dtype: str, report: Report) -> str:
        """Have this model in memory (or ModelError); `report` gets each step and may raise.

        Returns:
            For what it is ready, as a sentence's end.
        """

    def prompt_limit_s(self, _: WorkRequest) -> float:
        """How long template and tokenizer may take, until the first event."""

    def run(self, request: WorkRequest, should_stop: Callable[[], bool]) -> Iterator[RunEvent]:
        """Work on the model that `load` brought in last; raises once `should_stop` is true."""

    def release(self) -> None:
        """Drop all models, after memory ran out."""


class WorkerLoop:
    """Serves one connection until `Shutdown` or its end: one job after another.

    One thread reads commands, so that a cancel arrives while a job runs; the caller's does the
    work. Each job ends with one `JobEnd`; before what may hang it sends a `Deadline`, and the other
    end keeps the time.
    """

    def __init__(
        self,
        channel: Connection,
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
        self._work: queue.SimpleQueue[Job | Shutdown] = queue.SimpleQueue()
        self._stops: dict[str, threading.Event] = {}

    def run(self) -> None:
        """Serve until `Shutdown`, or until the device is lost."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        runner = self._make_runner()
        self._send(WorkerReady())
        while not isinstance(job := self._work.get(), Shutdown):
            end = self._outcome(runner, job, self._stops[job.job_id])
            del self._stops[job.job_id]
            if end.reason == OUT_OF_MEMORY:
                runner.release()
            self._send(end)
            if end.reason == DEVICE_LOST:
                return  # nothing can be done in this process any more

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
                self._stops[command.job_id] = threading.Event()
                self._work.put(command)
            case Cancel():
                if stop := self._stops.get(command.job_id):
                    stop.set()
            case Shutdown():
                self._stop_all()

    def _stop_all(self) -> None:
        for stop in list(self._stops.values()):
            stop.set()
        self._work.put(Shutdown())

    # --- jobs and models ----------------------------------------------------------------------

    def _outcome(self, runner: Runner, job: Job, stop: threading.Event) -> JobEnd:
        try:
            started = time.perf_counter()
            self._load(runner, job, stop)
            if not isinstance(job.request, LoadRequest):
                load_ms = (time.perf_counter() - started) * 1000
                self._stream(runner, job.job_id, job.request, stop, load_ms)
        except RunCancelledError:
            return JobEnd(job.job_id, "cancelled")
        except Exception as error:
            known = error if isinstance(error, CkvError) else CkvError()
            at = "model" if isinstance(error, ModelError) else known.field
            reason = sentence_of(error, runner.act)
            return JobEnd(job.job_id, "failed", reason, known.for_good, at)
        return JobEnd(job.job_id)

    def _stream(
        self,
        runner: Runner,
        job_id: str,
        request: WorkRequest,
        stop: threading.Event,
        load_ms: float,
    ) -> None:
        """Forward the engine's events, with the time that the load took."""
        what = "Reading the prompt with the model's tokenizer"
        self._send(Deadline(job_id, what, runner.prompt_limit_s(request)))
        step = Deadline(job_id, runner.act, None, of_run=True)
        if packages := packages_of(parts_of(request)):
            step = replace(step, what=STEP.format(packages), limit_s=plug_ins.STEP_S)
        is_first = True
        for event in runner.run(request, stop.is_set):
            if stop.is_set():  # not every stage of an engine looks by itself
                raise RunCancelledError
            if is_first or packages:
                self._send(step)
                is_first = False
            timed = event
            if isinstance(event, RunFinished):
                timed = replace(event, timings_ms={**event.timings_ms, "load": load_ms})
            self._send(JobEvent(job_id, timed))

    def _load(self, runner: Runner, job: Job, stop: threading.Event) -> None:
        request = job.request
        model = request.model
        is_news = not job.gives_way  # previews come often, and find their model in memory

        def report(step: Step) -> None:
            nonlocal is_news
            if stop.is_set():
                raise RunCancelledError
            what = step.sentence.partition(":")[0].rstrip(".")
            self._send(Deadline(job.job_id, what, step.limit_s))
            if not is_news:
                is_news = True
                return
            if not job.loads_ahead:
                progress = Progress("load", step.fraction, step.sentence)
                self._send(JobEvent(job.job_id, progress))
            self._send(
                ModelStatus(model, False, step.sentence, loading=True, fraction=step.fraction)
            )

        try:
            report(Step(f"Loading {model}.", limit_s=STALL_S))  # what is prepared may be hashed
            where = runner.load(model, request.device, request.dtype, report)
        except RunCancelledError:
            self._send(ModelStatus(model, False, f"Loading {model} was cancelled."))
            raise
        except Exception as error:
            sentence = sentence_of(error, f"Loading {model}")
            self._send(ModelStatus(model, False, sentence, failed=True))
            raise
        self._send(ModelStatus(model, True, f"{model} is ready {where}."))

    def _send(self, reply: Reply) -> None:
        try:
            with self._send_lock:
                self._channel.send(reply)
        except OSError:
            self._on_lost()


def sentence_of(error: Exception, what: str) -> str:
    """What the user reads of an error; the traceback of an unexpected error goes to the log."""
    if isinstance(error, CkvError):
        return str(error)
    LOGGER.error("%s failed.", what, exc_info=error)
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    if is_device_lost(error):
        return DEVICE_LOST
    return fault(error) or (
        f"{what} failed ({type(error).__name__}: {first_line(error)}); the log has the details."
    )
