"""Who has a SQLite file: one server, or a command that may not meet one."""

import errno
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ckv_core.errors import StorageError

if sys.platform == "linux":
    import fcntl

_OUR_BYTE = 0x7FFF_FFFF_FFFF  # far beyond a database's end and SQLite's own, at 1 GiB
_open_files: dict[tuple[int, int], int] = {}  # handles by device and inode


@contextmanager
def hold(file: Path, name: str) -> Iterator[None]:
    """Hold a SQLite file by its real path, which a restore keeps, and by itself, however named.

    Raises:
        StorageError: a server holds it, which the sentence calls `name`, or no lock can be made.
    """
    lock = FileLock(f"{file}.server.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _taken(name) from None
    except OSError as error:
        raise StorageError(f"{lock.lock_file} cannot be written: {error.strerror}.") from None
    try:
        with _held_itself(file, name):
            yield
    finally:
        lock.release()


def _taken(name: str) -> StorageError:
    return StorageError(
        f"Another CriticalKV Lab serves {name}; use that one, stop it, or set "
        "CKV_HOME to another folder."
    )


@contextmanager
def _held_itself(file: Path, name: str) -> Iterator[None]:
    """Lock a byte of the file that SQLite never locks; on Linux, elsewhere the path must do.

    The lock belongs to the open file and not to the process, so SQLite's own closing of the file
    leaves it. Our closing would drop SQLite's locks in this process, so the file stays open.
    """
    handle = _handle(file) if sys.platform == "linux" else None
    if handle is None:
        yield
        return
    if not _lock_byte(handle, take=True):
        raise _taken(name)
    try:
        yield
    finally:
        _lock_byte(handle, take=False)


def _handle(file: Path) -> int | None:
    """The file, open for good; None if it is not there or may not be written."""
    try:
        status = file.stat()
        identity = status.st_dev, status.st_ino
        if identity not in _open_files:
            _open_files[identity] = os.open(file, os.O_RDWR)
    except OSError:
        return None
    return _open_files[identity]


def _lock_byte(handle: int, *, take: bool) -> bool:
    """Whether nobody else has it; true too where the file system knows no such locks."""
    if sys.platform == "linux":
        kind = fcntl.F_WRLCK if take else fcntl.F_UNLCK
        try:
            lock = struct.pack("hhqqi", kind, os.SEEK_SET, _OUR_BYTE, 1, 0)
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, lock)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
