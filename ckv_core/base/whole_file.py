"""Files that are whole or not there."""

import glob
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ckv_core.errors import CkvError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have a file written that is whole or as it was before; CkvError if it cannot be written."""
    path = Path(os.path.realpath(path))
    with reported(path, "written"):
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe
            write(path)
            return
        with beside(path) as part:
            write(part)
            part.replace(path)


@contextmanager
def reported(file: object, what: str, kind: type[CkvError] = CkvError) -> Iterator[None]:
    """Turn an OSError of the block into a sentence: `file` cannot be read, written or deleted."""
    try:
        yield
    except OSError as error:
        raise kind(f"{file} cannot be {what}: {error.strerror or error}.") from None


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
