"""Reads a file that is to be imported; a large one in a process of its own, bounded in all.

Parsing holds up every thread of a process, and hostile JSON takes many times its size in memory.
"""

import io
import multiprocessing
import pickle
import resource
import signal
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from ckv_core.errors import StorageError
from storage.bundle import BundledRun
from storage.bundle_reader import read_bundle
from storage.result_file import read_results

ZIP_SIGN = b"PK"
SMALL_BYTES = 2**20  # packed and unpacked
MEMORY_BYTES = 3 * 2**29  # beyond what the process has at its start
SPOOL_BYTES = 2**30
LIMIT_S = 120
_REFUSED = "The file was refused, nothing was imported:"
TOO_MUCH = f"{_REFUSED} reading it takes too much memory or time; export fewer runs at a time."
BROKEN = f"{_REFUSED} it could not be read."


@contextmanager
def reading(data: bytes) -> Iterator[Iterable[BundledRun]]:
    """The runs of a bundle or a file of results, all checked; to be gone through once.

    Of a large file one run at a time is in memory.

    Args:
        data: a zip, a JSON text or one a line, from anybody.

    Raises:
        StorageError: the file is wrong, or takes too much; one sentence says what.
    """
    if _is_small(data):
        yield list(_runs(data))
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ckv-import-"))
            spool = Path(folder) / "runs"
            _read_apart(data, spool)
            file = stack.enter_context(spool.open("rb"))
        except OSError as error:
            raise StorageError(_told(error)) from error
        yield _spooled(file)


def _runs(data: bytes) -> Iterator[BundledRun]:
    if data.startswith(ZIP_SIGN):
        yield from read_bundle(data)
    else:
        yield from read_results(data)


def _is_small(data: bytes) -> bool:
    if len(data) > SMALL_BYTES:
        return False
    if not data.startswith(ZIP_SIGN):
        return True
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            # No more than that is unpacked, whatever there is.
            return sum(entry.file_size for entry in archive.infolist()) <= SMALL_BYTES
    except Exception:
        return True  # the reader knows what to say of it


def _spooled(file: io.BufferedReader) -> Iterator[BundledRun]:
    with suppress(EOFError):
        while True:
            # Our own process wrote it, into a folder of ours.
            yield pickle.load(file)  # noqa: S301


def _read_apart(data: bytes, spool: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answer, child_end = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(data, spool, child_end), daemon=True)
    try:
        child.start()
    finally:
        child_end.close()
    try:
        refusal = answer.recv() if answer.poll(LIMIT_S) else TOO_MUCH
    except EOFError:
        refusal = TOO_MUCH  # the system ended it
    finally:
        child.kill()
        child.join()
        answer.close()
    if refusal:
        raise StorageError(refusal)


def _child(data: bytes, spool: Path, answer: Connection) -> None:
    """Write the runs one by one, then answer with an empty text, or why there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends this process
    try:
        _bound_this_process()
        with spool.open("wb") as file:
            for run in _runs(data):
                pickle.dump(run, file)
        answer.send("")
    except StorageError as error:
        answer.send(str(error))
    except MemoryError:
        answer.send(TOO_MUCH)
    except OSError as error:
        answer.send(_told(error))
    except Exception:
        answer.send(BROKEN)  # a traceback would quote the file


def _told(error: OSError) -> str:
    return f"{_REFUSED} the server cannot keep it for reading ({error.strerror})."


def _bound_this_process() -> None:
    taken = psutil.Process().memory_info().vms
    for kind, most in (
        (resource.RLIMIT_AS, taken + MEMORY_BYTES),
        (resource.RLIMIT_CPU, LIMIT_S),
        (resource.RLIMIT_FSIZE, SPOOL_BYTES),
    ):
        with suppress(ValueError, OSError):  # a lower limit is there already
            resource.setrlimit(kind, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing then fails instead
