"""Backups of a SQLite database: taken while it is in use, checked, and put back."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from ckv_core.errors import StorageError
from storage.server_lock import hold

_SIDE_FILES = ("-wal", "-shm")


def database_file(url: str) -> Path:
    """The file of a SQLite URL.

    Raises:
        StorageError: another kind of database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StorageError("CKV_DATABASE_URL is no database URL.") from None
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise StorageError("Only SQLite files are backed up here; use pg_dump for PostgreSQL.")
    return Path(parsed.database).absolute()


def copy_database(source: Path, target: Path) -> None:
    """One consistent copy, by SQLite's online backup; `target` is whole or not there.

    Raises:
        StorageError: there is no such database, it is damaged, or the copy cannot be written.
    """
    if not source.is_file():
        raise StorageError(f"There is no database {source}.")
    try:
        with _beside(target) as part:
            with (
                closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
                closing(sqlite3.connect(part)) as new,
            ):
                old.backup(new)
                # A copy is one file; it takes its -wal with it otherwise.
                new.execute("PRAGMA journal_mode = DELETE")
                if new.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                    raise StorageError(f"{source} is damaged; nothing was written.")
            part.replace(target)
    except sqlite3.Error as error:
        raise StorageError(f"{source} cannot be copied to {target}: {error}.") from None
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror or error}.") from None


def restore(source: Path, url: str) -> Path | None:
    """Put a backup in the place of the database; the old one is kept beside it.

    Returns:
        Where the old one is now; None if there was none.

    Raises:
        StorageError: the backup is no database of this app, a server runs, or a file operation
            failed; then the database is as it was.
    """
    target = database_file(url)
    _check_backup(source)
    if source.resolve() == target.resolve():
        raise StorageError("The backup is the database itself; give another file.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with hold(str(target), str(target)), _staged(source, target) as part:
        kept = None
        if target.exists():
            stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
            kept = target.with_name(f"{target.name}.before-restore-{stamp}")
        _put_in_place(part, target, kept)
    return kept


def _put_in_place(part: Path, target: Path, kept: Path | None) -> None:
    """Move the old files to `kept` and the new one to `target`; all or none."""
    moved: list[tuple[Path, Path]] = []
    try:
        # Moved, not copied: a damaged database can be replaced too.
        for suffix in ("", *_SIDE_FILES) if kept else ():
            old, there = Path(f"{target}{suffix}"), Path(f"{kept}{suffix}")
            if old.exists():
                old.replace(there)
                moved.append((old, there))
        part.replace(target)
    except OSError as error:
        for old, there in moved:
            there.replace(old)
        raise StorageError(
            f"{target} cannot be replaced: {error.strerror or error}; it is as it was."
        ) from None


@contextmanager
def _staged(source: Path, target: Path) -> Iterator[Path]:
    with _beside(target) as part:
        copy_database(source, part)
        yield part


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A file name in the folder of `target`; gone afterwards unless it was moved."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _check_backup(source: Path) -> None:
    if not source.is_file():
        raise StorageError(f"There is no file {source}.")
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as found:
            found.execute("SELECT version_num FROM alembic_version").fetchone()
            found.execute("SELECT slug FROM runs LIMIT 1").fetchone()
    except sqlite3.Error as error:
        raise StorageError(f"{source} is no backup of this app's database: {error}.") from None
