"""The file behind a SQLite URL: one real path, whole or not there, never empty without a word."""

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL
from sqlalchemy.util import asbool

from ckv_core.errors import StorageError


def sqlite_file(url: URL) -> Path:
    """The file's real path, whichever link or `file:` URI names it.

    Raises:
        StorageError: the database would lie in memory.
    """
    name = url.database or ""
    if asbool(url.query.get("uri", False)):
        in_memory = url.query.get("mode") == "memory" or url.query.get("vfs") == "memdb"
        name = "" if in_memory else unquote(urlsplit(name).path)
    if not name or name.endswith(":memory:"):
        raise StorageError(
            "A SQLite database needs a file; write for example sqlite:////folder/ckv.sqlite3."
        )
    return Path(name).resolve()


def unfinished_mark(file: Path) -> Path:
    """There while a restore replaces `file`; whoever finds it knows that one was interrupted."""
    return file.with_name(f"{file.name}.restoring")


def check_whole(file: Path) -> None:
    """Refuse a file that was lost or doubled, which SQLite itself would take for a good one.

    Raises:
        StorageError: a restore was interrupted, or the file is empty or has a second name.
    """
    if unfinished_mark(file).exists():
        raise StorageError(
            f"A restore of {file} was interrupted; run `ckv restore FILE` again. What "
            f"was there before it is whole, in {file.name} or {file.name}.before-restore-*."
        )
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


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A free name in the folder of `target`; gone afterwards unless it was moved.

    What a killed process left under such a name is removed first; where that process still lives,
    it fails when it moves its file.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    _remove(target.parent, f".{target.name}.", "*.part")
    try:
        yield part
    finally:
        _remove(target.parent, part.name, "")


def _remove(folder: Path, name: str, pattern: str) -> None:
    for path in folder.glob(f"{glob.escape(name)}{pattern}*"):  # with SQLite's journals
        path.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is whole or as it was before.

    Raises:
        StorageError: it cannot be written.
    """
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
