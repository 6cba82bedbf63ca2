"""The file behind a SQLite URL: its real path, who has it, backups and the way back.

It is whole or not there, and never empty without a word.
"""

import errno
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from filelock import FileLock, Timeout
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.util import asbool

from ckv_core.base.whole_file import beside
from ckv_core.errors import StorageError

if sys.platform == "linux":
    import fcntl

_open_files: dict[tuple[int, int], int] = {}  # handles by device and inode


def sqlite_file(url: URL) -> Path:
    """The file's real path, whichever link or URI names it; StorageError for one in memory."""
    name = url.database or ""
    if asbool(url.query.get("uri", False)):
        in_memory = url.query.get("mode") == "memory" or url.query.get("vfs") == "memdb"
        name = "" if in_memory else unquote(urlsplit(name).path)
    if not name or name.endswith(":memory:"):
        raise StorageError(
            "A SQLite database needs a file; write for example sqlite:////folder/ckv.sqlite3."
        )
    return Path(name).resolve()


def check_whole(file: Path) -> None:
    """StorageError for a file that is empty or has a second name, which SQLite would take."""
    if not file.is_file():
        return
    status = file.stat()
    if not status.st_size:
        raise StorageError(
            f"The database {file} is empty (0 bytes); restore a backup, or move it away to begin "
            "a new library."
        )
    if status.st_nlink > 1:
        raise StorageError(
            f"The database {file} has a second name (a hard link), and SQLite would keep a journal "
            "for each; make one of them a copy."
        )


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is whole or as it was before; StorageError if it cannot be written."""
    path = Path(os.path.realpath(path))
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe
            path.write_bytes(data)
            return
        with beside(path) as part:
            part.write_bytes(data)
            part.replace(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.") from None


# --- the lock: one server, or a command that may not meet one -----------------------------


@contextmanager
def hold(file: Path, name: str) -> Iterator[None]:
    """Hold a SQLite file by its real path, which a restore keeps, and by itself, however named.

    Raises:
        StorageError: a server holds it, which the sentence calls `name`, or no lock can be made.
    """
    lock = FileLock(f"{file}.server.lock")
    with ExitStack() as held:
        try:
            held.enter_context(lock.acquire(timeout=0))
            held.enter_context(_held_itself(file))
        except (Timeout, BlockingIOError):
            raise StorageError(
                f"Another CriticalKV Lab serves {name}; use that one, stop it, or set "
                "CKV_HOME to another folder."
            ) from None
        except OSError as error:
            raise StorageError(f"{lock.lock_file} cannot be written: {error.strerror}.") from None
        yield


@contextmanager
def _held_itself(file: Path) -> Iterator[None]:
    """Hold the file by `flock`, on Linux: SQLite's own locks are of another kind there.

    Our closing of the file would drop SQLite's locks in this process, so it stays open.
    """
    if sys.platform != "linux" or not file.exists():
        yield
        return
    status = file.stat()
    identity = status.st_dev, status.st_ino
    if identity not in _open_files:
        _open_files[identity] = os.open(file, os.O_RDONLY)
    try:
        fcntl.flock(_open_files[identity], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:  # others: the file system knows no such locks
            raise
    try:
        yield
    finally:
        fcntl.flock(_open_files[identity], fcntl.LOCK_UN)


# --- backups: taken while it is in use, checked, and put back ---------------------------------


def database_file(url: str) -> Path:
    """The file of a SQLite URL; StorageError for another kind of database."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StorageError("CKV_DATABASE_URL is no database URL.") from None
    if parsed.get_backend_name() != "sqlite":
        raise StorageError("Only SQLite files are backed up here; use pg_dump for PostgreSQL.")
    return sqlite_file(parsed)


def copy_database(source: Path, target: Path) -> None:
    """One consistent copy, by SQLite's online backup; `target` is whole or not there.

    Raises:
        StorageError: there is no such database, it is damaged, or the copy cannot be written.
    """
    try:
        with beside(target) as part:
            _copy(source, part, target)
            part.replace(target)
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror or error}.") from None


def _copy(source: Path, part: Path, target: Path) -> None:
    """Copy to `part`, a new file that is to become `target`, and check it."""
    if not source.is_file():
        raise StorageError(f"There is no database {source}.")
    part.touch(mode=0o600, exist_ok=False)
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(part)) as new,
        ):
            old.backup(new)
            # A copy is one file; it takes its -wal with it otherwise.
            new.execute("PRAGMA journal_mode = DELETE")
            if new.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                raise StorageError(f"{source} is damaged; nothing was written.")
    except sqlite3.Error as error:
        raise StorageError(f"{source} cannot be copied to {target}: {error}.") from None


def restore(source: Path, url: str) -> Path | None:
    """Put a backup in the place of the database, at once; the old one is kept beside it.

    Returns:
        Where the old one is now; None if there was none.

    Raises:
        StorageError: the backup is no database of this app, a server runs, or a file operation
            failed; then the database is as it was.
    """
    target = database_file(url)
    _check_backup(source)
    if source.resolve() == target:
        raise StorageError("The backup is the database itself; give another file.")
    kept = target.with_name(f"{target.name}.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with hold(target, str(target)), beside(target) as part:
            _copy(source, part, target)
            if target.exists():
                _keep(target, kept)
            try:
                part.replace(target)
            except OSError:
                kept.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise StorageError(
            f"{target} cannot be replaced: {error.strerror or error}; it is as it was."
        ) from None
    return kept if kept.exists() else None


def _keep(file: Path, kept: Path) -> None:
    """Copy a database, and take away its log, which SQLite would play into the next of its name.

    Raises:
        StorageError: another program has it open.
    """
    try:
        with closing(sqlite3.connect(file)) as old:
            old.execute("PRAGMA journal_mode = DELETE")  # plays the log into the file
    except sqlite3.OperationalError as error:
        raise StorageError(f"{file} is in use ({error}); close what has it open.") from None
    except sqlite3.DatabaseError:  # damaged, so the log stays apart
        for suffix in ("-wal", "-shm"):
            if (log := Path(f"{file}{suffix}")).exists():
                log.replace(f"{kept}{suffix}")
    with beside(kept) as part:
        shutil.copy(file, part)
        part.replace(kept)


def _check_backup(source: Path) -> None:
    if not source.is_file():
        raise StorageError(f"There is no file {source}.")
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as backup:
            backup.execute("SELECT version_num FROM alembic_version").fetchone()
            backup.execute("SELECT slug FROM runs LIMIT 1").fetchone()
    except sqlite3.Error as error:
        raise StorageError(f"{source} is no backup of this app's database: {error}.") from None
