"""Reads a file that is to be imported; a large one in a process of its own, bounded in all."""

import io
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ckv_core.errors import StorageError
from ckv_core.runtime.read_apart import SMALL_BYTES, Data, TooMuchError, read_apart
from storage.bundle import BundledRun
from storage.bundle_reader import read_bundle
from storage.result_file import read_results

ZIP_SIGN = b"PK"
_REFUSED = "The file was refused, nothing was imported:"


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
        yield list(runs_of(data))
        return
    try:
        with read_apart(runs_of, data) as runs:
            yield runs
    except TooMuchError as error:
        reason = str(error)[0].lower() + str(error)[1:]
        raise StorageError(f"{_REFUSED} {reason}") from None
    except OSError as error:
        raise StorageError(
            f"{_REFUSED} the server cannot keep it for reading ({error.strerror})."
        ) from error


def runs_of(data: Data) -> Iterator[BundledRun]:
    """The runs of a file, one by one; raises as `reading`."""
    data = data.encode() if isinstance(data, str) else data
    if data.startswith(ZIP_SIGN):
        yield from read_bundle(data)
    else:
        yield from read_results(data)


def _is_small(data: bytes) -> bool:
    """Whether it has at most SMALL_BYTES, packed and unpacked."""
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
