"""Backups of a SQLite database: taken while it is in use, checked, and put back."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from ckv_core.errors import StorageError
from storage.file_lock import hold
from storage.sqlite_file import beside, sqlite_file, unfinished_mark


def database_file(url: str) -> Path:
    """The file of a SQLite URL.

    Raises:
        StorageError: another kind of database.
    """
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
    """Put a backup in the place of the database; the old one is kept beside it.

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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with hold(target, str(target)), beside(target) as part:
            _copy(source, part, target)
            return _put_in_place(part, target)
    except OSError as error:
        raise StorageError(
            f"{target} cannot be replaced: {error.strerror or error}; it is as it was."
        ) from None


def _put_in_place(part: Path, target: Path) -> Path | None:
    """Keep the old file and put the new one in its place; a mark says that this goes on.

    There is a database at every moment. The old one's log goes first: SQLite would play it into
    the new one.
    """
    mark = unfinished_mark(target)
    kept = target.with_name(f"{target.name}.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    existed = target.exists()
    undo: list[Callable[[], object]] = []
    mark.touch()
    _sync(target.parent)
    try:
        if existed:
            undo.append(_keep(target, kept))
            for suffix in ("-wal", "-shm"):
                old, there = Path(f"{target}{suffix}"), Path(f"{kept}{suffix}")
                if old.exists():
                    old.replace(there)
                    undo.append(partial(there.replace, old))
        part.replace(target)
    except BaseException:
        for step in reversed(undo):
            step()
        mark.unlink()  # only now: where a step failed too, the mark stays
        raise
    _sync(target.parent)
    mark.unlink()
    return kept if existed else None


def _keep(file: Path, kept: Path) -> Callable[[], object]:
    """Give the file a second name, or where that is not possible another; returns the way back."""
    try:
        os.link(file, kept)
    except OSError:
        file.replace(kept)
        return partial(kept.replace, file)
    return kept.unlink


def _sync(folder: Path) -> None:
    """Have the folder's names on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_backup(source: Path) -> None:
    if not source.is_file():
        raise StorageError(f"There is no file {source}.")
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as backup:
            backup.execute("SELECT version_num FROM alembic_version").fetchone()
            backup.execute("SELECT slug FROM runs LIMIT 1").fetchone()
    except sqlite3.Error as error:
        raise StorageError(f"{source} is no backup of this app's database: {error}.") from None
