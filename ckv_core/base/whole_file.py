"""Files that are whole or not there."""

import glob
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
