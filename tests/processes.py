"""Processes of tests: their start, their ports, which nobody else can take, and that they end."""

import contextlib
import multiprocessing
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 60.0  # for a busy machine; only a test that fails waits so long
_guards: list[socket.socket] = []


def free_port() -> int:
    """A port of loopback that the system gives to nobody else while this process lives.

    A socket that is bound to it and does not listen keeps it: on Linux a server that sets
    SO_REUSEADDR, as uvicorn and PostgreSQL do, may still listen there.
    """
    guard = socket.socket()
    guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    guard.bind(("127.0.0.1", 0))
    _guards.append(guard)
    return int(guard.getsockname()[1])


def python(source: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs this source, which can import the packages, with pipes to and from it."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def forked(
    work: Callable[..., None], *arguments: object
) -> Iterator[tuple[ForkProcess, Connection]]:
    """A copy of this process, with all that is imported here, and our end of a pipe to it.

    It does the work with these arguments and its end of the pipe, and is killed afterwards.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        ours.close()


def wait_for(ask: Callable[[], Any], wanted: Callable[[Any], object] = bool) -> Any:
    """The first answer that fits."""
    until = time.monotonic() + PATIENCE_S
    while not wanted(found := ask()):
        assert time.monotonic() < until, f"still {found}"
        time.sleep(0.01)
    return found


def assert_gone(pids: list[int]) -> None:
    """They have ended, or do so soon."""
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert alive == []
