"""The worker as a spawned process: its entry, and the parent's handle on it. Torch-free."""

import contextlib
import importlib
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait

from ckv_core.base import logs
from ckv_core.base.terminal import neutralised
from ckv_core.worker.messages import Command, Reply, Shutdown
from ckv_core.worker.serve import Runner, WorkerLoop

LOGGER = logging.getLogger(__name__)
ENGINE_RUNNER = "ckv_core.worker.runner:EngineRunner"
PARENT_CHECK_S = 1.0
EXIT_WAIT_S = 5.0
OnReply = Callable[["WorkerProcess", Reply], None]
OnLost = Callable[["WorkerProcess"], None]
CHILD_ENVIRONMENT = {
    # Browser and worker share the cores: threads that spin while they wait starve the page.
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",  # counting runs beside a job and must not take its cores
}


class WorkerProcess:
    """One started worker: sending never blocks the caller, replies come from a thread."""

    def __init__(self, runner: str, on_reply: OnReply, on_lost: OnLost) -> None:
        """Start it.

        Args:
            runner: `module:attribute` of its engine, imported in the child only.
            on_reply: gets every reply, in the reading thread.
            on_lost: called once, in the reading thread, when the process has ended.

        Raises:
            OSError: the system refuses a new process.
        """
        context = multiprocessing.get_context("spawn")
        self._connection, child_end = context.Pipe()
        self._process = context.Process(
            target=worker_main, args=(child_end, runner), name="ckv-worker", daemon=True
        )
        self._on_reply, self._on_lost = on_reply, on_lost
        self._outbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.has_replied = False
        with child_end:
            self._process.start()
        self._writer = threading.Thread(target=self._write, name="worker-send", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, name="worker-receive", daemon=True).start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def send(self, command: Command) -> None:
        """Hand over a command; lost if the process dies first."""
        self._outbox.put(command)

    def kill(self) -> None:
        """End it now; `on_lost` follows."""
        self._process.kill()

    def stop(self, timeout_s: float) -> None:
        """End it within the time: by request, then by force. It has nothing to save."""
        deadline = time.monotonic() + timeout_s
        self.send(Shutdown())
        self._process.join(timeout_s / 3)
        for end in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                end()
                self._process.join(max(0.1, (deadline - time.monotonic()) / 2))

    def exit_reason(self) -> str:
        """Half a sentence on how it ended."""
        code = self._process.exitcode
        if code is None:
            return "the worker process was lost"
        if code >= 0:
            return f"the worker process stopped with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"the worker process was ended by {name}{hint}"

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reader sees the same end and reports it
            while (command := self._outbox.get()) is not None:
                self._connection.send(command)

    def _read(self) -> None:
        try:
            while True:
                reply = self._connection.recv()
                self.has_replied = True
                self._on_reply(self, reply)
        except (EOFError, OSError):
            LOGGER.debug("The worker closed its connection.")
        except Exception:
            LOGGER.exception("A message of the worker could not be read; ending it.")
            self.kill()
        self._process.join(EXIT_WAIT_S)
        if self._process.is_alive():
            self.kill()
            self._process.join(EXIT_WAIT_S)
        self._outbox.put(None)
        self._writer.join()
        self._connection.close()
        self._on_lost(self)


def worker_main(connection: Connection, runner: str) -> None:
    """Entry of the child that does jobs; it never outlives its parent, and this returns never.

    `spawn` re-imports the parent's main module before this, so that module must import the
    dashboard inside its `main()` only.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends at once, even inside a long operation
    logs.configure("worker")
    for name, value in CHILD_ENVIRONMENT.items():  # before anything heavy is imported
        os.environ.setdefault(name, value)
    threading.Thread(target=_exit_with_parent, name="parent-watch", daemon=True).start()
    try:
        with neutralised():
            WorkerLoop(connection, partial(runner_of, runner), lambda: os._exit(1)).run()
    except BaseException:
        LOGGER.exception("The worker stopped.")
        os._exit(1)
    # Not sys.exit: threads of native libraries must not hold up or crash the end.
    os._exit(0)


def runner_of(name: str) -> Runner:
    """A new engine of this `module:attribute`, whose import may take seconds."""
    module, _, attribute = name.partition(":")
    made: Runner = getattr(importlib.import_module(module), attribute)()
    return made


def _exit_with_parent() -> None:
    """End this process when the parent is gone, however it died and whatever runs here."""
    parent = multiprocessing.parent_process()
    while parent is not None and os.getppid() == parent.pid:
        if wait([parent.sentinel], PARENT_CHECK_S):
            break
    os._exit(1)
