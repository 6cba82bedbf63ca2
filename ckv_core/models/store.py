"""Model folders under CKV_HOME: manifests and remembered hashes. No torch."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from ckv_core.runtime.home import weights_file

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a model folder as it was when written."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a prepared model folder holds; written last, inside the folder."""

    source: str  # where the weights came from, for the reader
    sha256: str  # of the weights files
    files: tuple[StoredFile, ...]


def write_manifest(folder: Path, source: str) -> Manifest:
    """Hash every file of a folder and write its manifest."""
    files = tuple(
        StoredFile(path.name, path.stat().st_size, hash_file(path))
        for path in sorted(folder.iterdir())
    )
    weights = {file.name: file.sha256 for file in files if file.name.endswith(".safetensors")}
    manifest = Manifest(source, combine(weights), files)
    (folder / MANIFEST_NAME).write_text(json.dumps(asdict(manifest), indent=1), "utf-8")
    return manifest


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest if every file it lists is there with its size; None otherwise."""
    try:
        raw = json.loads((folder / MANIFEST_NAME).read_text("utf-8"))
        files = tuple(StoredFile(**file) for file in raw["files"])
        manifest = Manifest(raw["source"], raw["sha256"], files)
        if any((folder / file.name).stat().st_size != file.size for file in files):
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return manifest


def is_intact(folder: Path, manifest: Manifest) -> bool:
    """Whether every file still has the hash of its manifest; only changed files are read."""
    paths = [folder / file.name for file in manifest.files]
    return file_hashes(paths) == {file.name: file.sha256 for file in manifest.files}


def weights_sha256(files: Sequence[Path]) -> str:
    """One hash over weights files, whatever folder they lie in; read once, then remembered."""
    return combine(file_hashes(files))


def combine(hashes: Mapping[str, str]) -> str:
    """The hash of one file as it is; of several, the hash of their sorted names and hashes."""
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    listing = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256(listing.encode()).hexdigest()


def remember(folder: Path, manifest: Manifest) -> None:
    """Take a fresh manifest's hashes as known, so that the first load need not read again."""
    _update_known({_key(folder / file.name): file.sha256 for file in manifest.files})


def file_hashes(files: Sequence[Path]) -> dict[str, str]:
    """SHA-256 by file name; one with known path, size, time and inode is not read again."""
    known = _read_known()
    keys = {path: _key(path) for path in files}
    fresh = {key: hash_file(path) for path, key in keys.items() if key not in known}
    if fresh:
        _update_known(fresh)
    return {path.name: (known | fresh)[key] for path, key in keys.items()}


def hashes_before(files: Sequence[Path]) -> dict[str, str]:
    """SHA-256 by file name, of what lay at each file's place when that was last read."""
    by_path = {key.rsplit("|", 3)[0]: sha256 for key, sha256 in _read_known().items()}
    found = {path.name: by_path.get(str(path.resolve())) for path in files}
    return {name: sha256 for name, sha256 in found.items() if sha256 is not None}


def known_sha256(path: Path) -> str | None:
    """The hash of a file as it is now, where that was read before."""
    return _read_known().get(_key(path))


def hash_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _key(path: Path) -> str:
    # A file in the hub cache is a link; its target is what is read.
    real = path.resolve()
    status = real.stat()
    return f"{real}|{status.st_size}|{status.st_mtime_ns}|{status.st_ino}"


def _read_known() -> dict[str, str]:
    try:
        known = json.loads(weights_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _update_known(fresh: Mapping[str, str]) -> None:
    path = weights_file()
    # It only saves time, so a home folder that cannot be written is no reason to fail.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            # Files that changed or went leave their old keys behind; drop those.
            kept = {key: value for key, value in _read_known().items() if _is_current(key)}
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".weights-sha256-")
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(kept | dict(fresh), stream, indent=1)
            Path(temporary).replace(path)


def _is_current(key: str) -> bool:
    path = Path(key.rsplit("|", 3)[0])
    return path.exists() and _key(path) == key
