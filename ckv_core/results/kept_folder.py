"""The kept caches of one owner: files in CKV_HOME under the names that people gave them."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from ckv_core.errors import CkvError, ConfigError
from ckv_core.results.kept_record import KeptRecord, read_record
from ckv_core.runtime.home import home_folder

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
    """Where one owner's caches lie; without logins, and for the command line, nobody's.

    All methods raise ConfigError for a name that is none, is taken or is not there, and CkvError
    where the disk refuses.
    """

    def __init__(self, owner: str | None = None) -> None:
        folder = home_folder() / "caches"
        if owner is not None:  # a user's name may hold anything
            folder = folder / "of" / blake2b(owner.encode(), digest_size=16).hexdigest()
        self._folder = folder

    def entries(self) -> list[KeptEntry]:
        """All of them, by name."""
        files = (path for path in self._folder.glob(f"*{SUFFIX}") if _NAME.fullmatch(path.stem))
        return [_entry(path) for path in sorted(files)]

    def entry(self, name: str) -> KeptEntry:
        return _entry(self.find(name))

    def find(self, name: str) -> Path:
        path = self._path(name)
        if not path.is_file():
            raise ConfigError(f"No cache is kept under the name {name!r}.")
        return path

    def free(self, name: str) -> Path:
        """Where a new one of that name goes; the folder is there."""
        path = self._path(name)
        if path.exists():
            raise ConfigError(f"A cache {name!r} is kept already; choose another name.")
        if len(self.entries()) >= MAX_CACHES:
            raise ConfigError(f"{MAX_CACHES} caches are kept; delete one first.")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _failed(path, "written", error) from None
        return path

    def add(self, name: str, write: Callable[[Path], object]) -> None:
        """Keep what `write` puts at a path; its tensors are checked when it is asked."""

        def checked(beside: Path) -> None:
            write(beside)
            read_record(beside)

        write_whole(self.free(name), checked)

    def rename(self, name: str, to: str) -> None:
        source = self.find(name)
        try:
            source.rename(self.free(to))
        except OSError as error:
            raise _failed(source, "renamed", error) from None

    def delete(self, name: str) -> None:
        path = self.find(name)
        try:
            path.unlink()
        except OSError as error:
            raise _failed(path, "deleted", error) from None

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                "A cache's name has up to 64 letters, digits, blanks and . _ + -, and begins with "
                "a letter or digit."
            )
        return self._folder / f"{name}{SUFFIX}"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have a file written beside its place and moved there; CkvError where that fails."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        beside.replace(path)
    except OSError as error:
        raise _failed(path, "written", error) from None
    finally:
        beside.unlink(missing_ok=True)


def _entry(path: Path) -> KeptEntry:
    try:
        return KeptEntry(path.stem, path.stat().st_size, read_record(path))
    except CkvError:
        return KeptEntry(path.stem, 0, None)
    except OSError:  # deleted meanwhile
        return KeptEntry(path.stem, 0, None)


def _failed(path: Path, what: str, error: OSError) -> CkvError:
    return CkvError(f"{str(path)!r} cannot be {what}: {error.strerror or error}.")
