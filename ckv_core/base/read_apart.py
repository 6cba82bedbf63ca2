"""Reads what is large and not trusted in a process of its own, bounded in memory, time and disk.

Parsing holds up every thread of a process, and hostile JSON takes many times its size in memory.
"""

import io
import multiprocessing
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from ckv_core.base.process_limits import limit, limit_memory
from ckv_core.errors import CkvError, ConfigError

T = TypeVar("T")
SMALL_BYTES = 2**20  # what is smaller is read where it is
MEMORY_BYTES = 3 * 2**29  # beyond what the process has at its start
SPOOL_BYTES = 2**30
LIMIT_S = 120
TOO_MUCH = "Reading it takes too much memory or time; take a smaller file."
BROKEN = "It could not be read."
Data = str | bytes
Read = Callable[[Data], Iterable[T]]


class TooMuchError(ConfigError):
    """Reading took more memory, time or disk than it may, or failed in an unknown way."""


@contextmanager
def read_apart(read: Read[T], data: Data, limit_s: int = LIMIT_S) -> Iterator[Iterator[T]]:
    """Give what `read` makes of `data`, all of it read and checked; to be gone through once.

    One value at a time is in this process's memory.

    Args:
        read: a function of a module; it, and each value, can be pickled.
        data: anybody's.
        limit_s: seconds until the process is ended.

    Raises:
        CkvError: `read` refused the data.
        TooMuchError: reading it took too much.
    """
    with tempfile.TemporaryDirectory(prefix="ckv-read-") as folder:
        spool = Path(folder) / "values"
        _have_read(read, data, spool, limit_s)
        with spool.open("rb") as file:
            yield _spooled(file)


def _spooled(file: io.BufferedReader) -> Iterator[T]:
    with suppress(EOFError):
        while True:
            # Our own process wrote it, into a folder of ours.
            yield pickle.load(file)  # noqa: S301


def _have_read(read: Read[T], data: Data, spool: Path, limit_s: int) -> None:
    context = multiprocessing.get_context("spawn")
    answer, child_end = context.Pipe(duplex=False)
    child = context.Process(
        target=_child, args=(read, data, spool, child_end, limit_s), daemon=True
    )
    with child_end:
        child.start()
    refusal: CkvError | None = TooMuchError(TOO_MUCH)
    try:
        if answer.poll(limit_s):
            refusal = answer.recv()
    except EOFError:
        pass  # the system ended it
    finally:
        child.kill()
        child.join()
        answer.close()
    if refusal is not None:
        raise refusal


def _child(read: Read[T], data: Data, spool: Path, answer: Connection, limit_s: int) -> None:
    """Write the values one by one, then answer with None, or why there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    try:
        limit_memory(MEMORY_BYTES)
        limit("RLIMIT_CPU", limit_s)
        limit("RLIMIT_FSIZE", SPOOL_BYTES)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing then fails instead
        with spool.open("wb") as file:
            for value in read(data):
                pickle.dump(value, file)
        answer.send(None)
    except CkvError as error:
        answer.send(error)
    except MemoryError:
        answer.send(TooMuchError(TOO_MUCH))
    except OSError as error:
        answer.send(TooMuchError(f"It cannot be kept for reading ({error.strerror})."))
    except Exception:  # a parser raises what it likes
        answer.send(TooMuchError(BROKEN))  # a traceback would quote the file
