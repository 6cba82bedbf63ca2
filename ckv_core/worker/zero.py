"""Runs on Hugging Face's ZeroGPU: a forked process with a GPU for each job, else the CPU. No torch.

The package `spaces`, which such a Space has, lends a GPU for seconds. It forks this process, calls
a generator there and hands on what it yields. Nothing that a call leaves behind is relied on.
"""

import importlib.util
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from contextvars import copy_context
from functools import partial
from multiprocessing import Pipe, parent_process
from typing import Any

import psutil

from ckv_core.errors import CkvError
from ckv_core.records.events import Progress
from ckv_core.records.work_requests import KeepRequest, PreviewRequest, WhyRequest
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
    WorkerReady,
)
from ckv_core.worker.process import OnLost, OnReply, WorkerProcess, runner_of
from ckv_core.worker.serve import WorkerLoop

LOGGER = logging.getLogger(__name__)
BEAT_S = 0.5  # at least so often the GPU's process yields, so that it learns of a cancel
QUEUE_S = 300.0  # in line for a GPU, and until it is set up
LEAST_S, MOST_S = 30, 120  # to ask for: more waits longer and uses up a visitor's quota
CHARACTERS_PER_S, TOKENS_PER_S = 8_000, 10  # not measured on a GPU; on the safe side
WAITS = "Waiting for a GPU of this Space."
NO_GPU = "This Space gives no GPU now"
GPU_ENDED = (
    "This Space took its GPU back before the run ended: {reason}. Choose fewer variants or new "
    "tokens, or device cpu."
)

Words = Generator[Reply | int | None]
Lent = Callable[[str, Job], Words]


def zero_worker(environ: Mapping[str, str]) -> Callable[..., WorkerProcess]:
    """The maker of workers: with GPUs on a ZeroGPU Space, of plain processes anywhere else."""
    on_zero = environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")
    if not on_zero or importlib.util.find_spec("spaces") is None:
        return WorkerProcess
    import spaces
    from spaces.zero import startup

    runner_of("ckv_core.worker.runner:EngineRunner")  # once here, not in each forked process
    lent: Lent = spaces.GPU(duration=seconds)(on_gpu)
    # What Gradio's own launch would do, which this app does not use: it has a server of its own.
    startup()
    return partial(ZeroWorker, lent)


def seconds(_runner: str, job: Job) -> int:
    """How long a job may have the GPU, by the length of its text and of what it generates."""
    request: Any = (
        job.request.run if isinstance(job.request, KeepRequest | WhyRequest) else job.request
    )
    text = len(getattr(request, "context", "")) / CHARACTERS_PER_S
    wanted: float = LEAST_S + text + request.max_new_tokens / TOKENS_PER_S
    return round(min(wanted, MOST_S))


def on_gpu(runner: str, job: Job) -> Words:
    """In the forked process: its id, the replies about one job, and None now and then."""
    if parent_process() is None:
        raise CkvError("this is the app's own process")
    _close_inherited()
    ours, theirs = Pipe()
    loop = threading.Thread(target=WorkerLoop(theirs, partial(runner_of, runner)).run, daemon=True)
    loop.start()
    with ours:  # its end stops the job, and then the loop
        yield os.getpid()  # first: the job may end this process at once
        ours.send(job)
        reply = None
        while not isinstance(reply, JobEnd) and (loop.is_alive() or ours.poll()):
            reply = ours.recv() if ours.poll(BEAT_S) else None
            yield reply


def _close_inherited() -> None:
    """Let go of the app's connections: their clients would not see that the app closes them."""
    held = psutil.Process().net_connections("tcp")
    ports = {each.laddr.port for each in held if each.status == psutil.CONN_LISTEN}
    for each in held:
        if each.laddr.port in ports:
            os.close(each.fd)


class ZeroWorker(WorkerProcess):
    """A process without a GPU, which loads ahead and previews, and a GPU for each other job.

    A job that gets no GPU goes to the process, and says so, unless it asks for CUDA.
    """

    def __init__(self, lent: Lent, runner: str, on_reply: OnReply, on_lost: OnLost) -> None:
        """Start the process; `lent` is `on_gpu`, as `spaces` lends a GPU to it."""
        self._lent, self._runner = lent, runner
        self._on_gpu: str | None = None  # id of the job that has a GPU, or waits for one
        self._child: int | None = None  # process id of what has the GPU
        self._stopped = threading.Event()

        def lose(worker: WorkerProcess) -> None:
            self._end_child()
            on_lost(worker)

        super().__init__(runner, on_reply, lose)

    def send(self, command: Command) -> None:
        """Hand over a command; a job in the context of the caller, whose quota it uses."""
        match command:
            case Job(request=request) if not (
                isinstance(request, LoadRequest | PreviewRequest | WhyRequest)
                or request.device == "cpu"
            ):
                self._stopped.clear()
                self._on_gpu = command.job_id
                work = partial(copy_context().run, self._run, command)
                threading.Thread(target=work, name="worker-gpu", daemon=True).start()
            case Cancel() if command.job_id == self._on_gpu:
                self._stopped.set()
            case _:
                super().send(command)

    def kill(self) -> None:
        """End both processes now; `on_lost` follows."""
        self._end_child()
        super().kill()

    def stop(self, timeout_s: float) -> None:
        """End both within the time."""
        self._end_child()
        super().stop(timeout_s)

    def _end_child(self) -> None:
        self._stopped.set()
        if (child := self._child) is not None:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def _run(self, job: Job) -> None:
        """One job with a GPU; every way ends in a JobEnd, or in the hands of the process."""
        self._reply(Deadline(job.job_id, WAITS.rstrip("."), QUEUE_S))
        self._reply(JobEvent(job.job_id, Progress("load", None, WAITS)))
        end = JobEnd(job.job_id, "cancelled")
        try:
            with closing(self._lent(self._runner, job)) as replies:
                end = self._follow(job, replies)
        except Exception as error:  # of `spaces`, whose kinds and texts are not ours
            reason = str(getattr(error, "message", error)).strip().rstrip(".")
            LOGGER.info("A job has no GPU: %s.", type(error).__name__)
            if self._child is None and not self._stopped.is_set():
                self._without(job, reason)
                return
            if not self._stopped.is_set():
                end = JobEnd(job.job_id, "failed", GPU_ENDED.format(reason=reason))
        self._child = self._on_gpu = None
        self._reply(end)

    def _follow(self, job: Job, replies: Words) -> JobEnd:
        for reply in replies:
            if self._stopped.is_set():
                return JobEnd(job.job_id, "cancelled")
            match reply:
                case int():
                    self._child = reply
                case JobEnd():
                    return reply
                case None | WorkerReady() | ModelStatus():
                    pass  # a model is ready where it stays, which is not there
                case _:
                    self._reply(reply)
        raise CkvError("its process ended")

    def _without(self, job: Job, reason: str) -> None:
        """Hand a job that got no GPU to the process, or end it where it must have one."""
        if job.request.device == "cuda":
            self._on_gpu = None
            sentence = f"{NO_GPU}: {reason}. Choose device auto or cpu, or try again later."
            self._reply(JobEnd(job.job_id, "failed", sentence, field="device"))
            return
        shown = Progress("load", None, f"{NO_GPU}, so the CPU computes this: {reason}.")
        self._reply(JobEvent(job.job_id, shown))
        super().send(job)
        self._on_gpu = None
        if self._stopped.is_set():  # meanwhile
            super().send(Cancel(job.job_id))

    def _reply(self, reply: Reply) -> None:
        self._on_reply(self, reply)
