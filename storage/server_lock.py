"""Which servers live: one per SQLite file; on PostgreSQL any number, each known by a lock."""

import errno
import logging
import os
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from ckv_core.errors import StorageError
from storage.sqlite_file import sqlite_file

if TYPE_CHECKING:  # storage.database itself needs this module, by way of storage.backup
    from storage.database import Database

if sys.platform == "linux":
    import fcntl

LOGGER = logging.getLogger(__name__)
CHECK_INTERVAL_S = 5.0
# PostgreSQL then notices within a minute that a whole machine is gone, not within hours.
_KEEPALIVE = (
    "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"
)
_OUR_BYTE = 0x7FFF_FFFF_FFFF  # far beyond a database's end and SQLite's own, at 1 GiB
_open_files: dict[tuple[int, int], int] = {}  # handles by device and inode


@contextmanager
def only_server(database: "Database") -> Iterator[None]:
    """Be a server of this database; the system tells the others at once if the process dies.

    A SQLite file has one server at a time: a second would take the first one's runs for dead. On
    PostgreSQL each server holds an advisory lock, by its own number, on a connection of its own.

    Raises:
        StorageError: another server holds the SQLite file, or PostgreSQL failed.
    """
    if database.server is None:
        with hold(sqlite_file(database.engine.url), database.name):
            yield
        return
    with database.explained():
        connection = _take(database.engine, database.server)
    stop = threading.Event()
    keeper = threading.Thread(
        target=_keep,
        args=(database.engine, database.server, connection, stop),
        name="server-lock",
        daemon=True,
    )
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        keeper.join(CHECK_INTERVAL_S)


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
        found = file.stat()
        identity = found.st_dev, found.st_ino
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


def _take(engine: Engine, server: int) -> Connection:
    """A connection outside of the pool that holds the lock as long as it is open."""
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        connection.detach()
        connection.exec_driver_sql(_KEEPALIVE)
        connection.execute(select(func.pg_advisory_lock(server)))
    except BaseException:
        connection.close()
        raise
    return connection


def _keep(engine: Engine, server: int, connection: Connection, stop: threading.Event) -> None:
    """Take the lock again when its connection was lost, as after a restart of PostgreSQL."""
    while not stop.wait(CHECK_INTERVAL_S):
        try:
            if connection.closed:
                connection = _take(engine, server)
            connection.execute(select(1))
        except SQLAlchemyError:
            LOGGER.warning("The database is out of reach; trying again.")
            connection.close()
    connection.close()
