"""The kept caches of one owner: files in CKV_HOME under the names that people gave them."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from ckv_core.base.home import home_folder
from ckv_core.base.whole_file import beside
from ckv_core.errors import CkvError, ConfigError, about
from ckv_core.records.kept_record import KeptRecord, check_file, read_record

SUFFIX = ".safetensors"
MAX_CACHES = 200
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._+-]{0,62}[A-Za-z0-9_+-])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """One kept cache.

    Attributes:
        size: of the file, in bytes.
        record: None where the file is spoilt.
    """

    name: str
    size: int
    record: KeptRecord | None


class KeptFolder:
    """The caches of one owner; without logins, and for the command line, nobody's.

    All methods raise ConfigError for a name that is none, is taken or is not there, and CkvError
    where the disk refuses.
    """

    def __init__(self, owner: str | None = None) -> None:
        folder = home_folder() / "caches"
        if owner is not None:  # a user's name may hold anything
            folder = folder / "of" / blake2b(owner.encode(), digest_size=16).hexdigest()
        self.folder = folder

    def entries(self) -> list[KeptEntry]:
        """All of them, by name."""
        return [_entry(path) for path in self._files()]

    def size(self) -> int:
        """Bytes of all its files, also of those that are spoilt or half written."""
        return _bytes_of(self.folder)

    def entry(self, name: str) -> KeptEntry:
        return _entry(self.find(name))

    def find(self, name: str) -> Path:
        path = self._path(name)
        if not path.is_file():
            raise ConfigError(f"No cache is kept under the name {name!r}.")
        return path

    def free(self, name: str) -> Path:
        """Return the path of a new one of that name, in a folder that is there."""
        with about("name"):
            path = self._path(name)
            if path.exists():
                raise ConfigError(f"A cache {name!r} is kept already; choose another name.")
        if len(self._files()) >= MAX_CACHES:
            raise ConfigError(f"{MAX_CACHES} caches are kept; delete one first.")
        with _reported(path, "written"):
            self.folder.mkdir(parents=True, exist_ok=True)
        return path

    def add(self, name: str, write: Callable[[Path], object]) -> None:
        """Keep what `write` puts at a path; its tensors are checked when it is used."""

        def checked(beside: Path) -> None:
            write(beside)
            check_file(beside)

        write_whole(self.free(name), checked)

    def delete(self, name: str) -> None:
        path = self.find(name)
        with _reported(path, "deleted"):
            path.unlink()

    def _files(self) -> list[Path]:
        files = (path for path in self.folder.glob(f"*{SUFFIX}") if _NAME.fullmatch(path.stem))
        return sorted(files)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                "A cache's name has up to 64 letters, digits, blanks and . _ + -, and begins with "
                "a letter or digit."
            )
        return self.folder / f"{name}{SUFFIX}"


def _bytes_of(folder: Path) -> int:
    total = 0
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with suppress(OSError):  # deleted meanwhile
                total += file.stat().st_size if file.is_file() else 0
    return total


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have a file written beside its place and moved there; CkvError where that fails."""
    with _reported(path, "written"), beside(path) as part:
        write(part)
        part.replace(path)


def _entry(path: Path) -> KeptEntry:
    try:
        file = path.stat()
    except OSError:  # deleted meanwhile
        return KeptEntry(path.stem, 0, None)
    record = _known_record(path, file.st_ino, file.st_size, file.st_mtime_ns)
    return KeptEntry(path.stem, 0 if record is None else file.st_size, record)


@lru_cache(maxsize=4 * MAX_CACHES)
def _known_record(path: Path, *_: int) -> KeptRecord | None:
    """The record of a file of that number, size and time, read once; None where it is spoilt."""
    try:
        return read_record(path)
    except CkvError:
        return None


@contextmanager
def _reported(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError of the block into a sentence."""
    try:
        yield
    except OSError as error:
        raise CkvError(f"{str(path)!r} cannot be {what}: {error.strerror or error}.") from None
