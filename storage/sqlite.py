"""The file behind a SQLite URL: its real path, who has it, copies. It is whole or not there."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from ckv_core.base.whole_file import beside, reported
from ckv_core.errors import StorageError


def sqlite_file(url: URL) -> Path:
    """The file's real path, whichever link names it; StorageError for one in memory or a URI."""
    name = url.database or ""
    if url.query or not name or name.endswith(":memory:"):
        raise StorageError(
            "A SQLite database needs a file; write for example sqlite:////folder/ckv.sqlite3."
        )
    return Path(name).resolve()


def check_whole(file: Path) -> None:
    """StorageError for a file that is empty, which SQLite would take."""
    if file.is_file() and not file.stat().st_size:
        raise StorageError(
            f"The database {file} is empty (0 bytes); restore a backup, or move it away to begin "
            "a new library."
        )


# --- the lock: one server, or a command that may not meet one -----------------------------


@contextmanager
def hold(file: Path, name: str) -> Iterator[None]:
    """Hold a SQLite file by its real path.

    Raises:
        StorageError: a server holds it, which the sentence calls `name`, or no lock can be made.
    """
    lock = FileLock(f"{file}.server.lock")
    with ExitStack() as held:
        try:
            held.enter_context(lock.acquire(timeout=0))
        except Timeout:
            raise StorageError(
                f"Another CriticalKV Lab serves {name}; use that one, stop it, or set "
                "CKV_HOME to another folder."
            ) from None
        except OSError as error:
            raise StorageError(f"{lock.lock_file} cannot be written: {error.strerror}.") from None
        yield


# --- backups: taken while it is in use, and checked -------------------------------------------


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
    with reported(target, "written", StorageError), beside(target) as part:
        _copy(source, part, target)
        part.replace(target)


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
