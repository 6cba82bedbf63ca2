"""Model folders under CKV_HOME, with manifests and remembered hashes. No torch.

A folder is made once, by one process, whole or not at all.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ckv_core.base.home import models_folder, weights_file
from ckv_core.errors import ModelError
from ckv_core.models.steps import Report, Step

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a model folder as it was when written."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a prepared model folder; written last, inside the folder."""

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
        is_whole = all((folder / file.name).stat().st_size == file.size for file in files)
        return Manifest(raw["source"], raw["sha256"], files) if is_whole else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def weights_sha256(files: Sequence[Path]) -> str:
    """One hash over weights files, whatever folder they lie in; read once, then remembered."""
    return combine(file_hashes(files))


def combine(hashes: Mapping[str, str]) -> str:
    """The hash of one file as it is; of several, the hash of their sorted names and hashes."""
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    listing = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256(listing.encode()).hexdigest()


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
            known = ((Path(key.rsplit("|", 3)[0]), key, sha) for key, sha in _read_known().items())
            kept = {key: sha for path, key, sha in known if path.exists() and _key(path) == key}
            beside = path.with_suffix(f".{os.getpid()}")
            beside.write_text(json.dumps(kept | dict(fresh), indent=1), "utf-8")
            beside.replace(path)


# A second process waits this long for the first one's conversion or download.
_WAIT_SECONDS = 3600.0


def prepare(target: Path, name: str, fill: Callable[[Path], Manifest], report: Report) -> Path:
    """A folder, ready to load; filled now if it is not there yet.

    Safe to call from several processes: one prepares, the others wait for it. A process that
    dies half-way leaves nothing that a later one would take for whole.

    `fill`: writes into an empty folder and gives its manifest; ModelError where it cannot.
    `report`: called with each step; not called if the folder is ready.
    """
    if is_prepared(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"{models_folder()} cannot be created ({error.strerror}); set CKV_HOME to a folder "
            "that can be written."
        ) from error
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        sentence = f"Another process is preparing {name}; waiting for it."
        report(Step(sentence, limit_s=_WAIT_SECONDS))
        try:
            lock.acquire(timeout=_WAIT_SECONDS)
        except Timeout as error:
            raise ModelError(
                f"Another process has been preparing {name} for an hour; stop it and try again."
            ) from error
    try:
        if not is_prepared(target):
            _fill_beside(target, name, fill, report)
    finally:
        lock.release()
    return target


def is_prepared(target: Path) -> bool:
    """Whether the folder is whole, to the bit; only changed files are read."""
    try:
        if (manifest := read_manifest(target)) is None:
            return False
        hashes = file_hashes([target / file.name for file in manifest.files])
        return hashes == {file.name: file.sha256 for file in manifest.files}
    except OSError:  # another process is replacing it just now
        return False


def _fill_beside(target: Path, name: str, fill: Callable[[Path], Manifest], report: Report) -> None:
    """Build the folder beside its place and move it there in one rename; under the lock."""
    # Nobody else works while the lock is held: what lies here was left by a dead process.
    prefix = f".{target.name}-"
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = target.with_name(f"{prefix}{os.getpid()}")
    try:
        work.mkdir()
        manifest = fill(work)
        if target.exists():
            report(Step(f"Replacing the incomplete or changed copy in {target}."))
            target.rename(work.with_name(work.name + "-old"))
        work.rename(target)
        # So that the first load need not read it again.
        _update_known({_key(target / file.name): file.sha256 for file in manifest.files})
    except OSError as error:
        raise ModelError(
            f"{name} could not be written to {target} ({error.strerror or error}); make "
            "room there or set CKV_HOME to another folder."
        ) from error
    finally:
        for leftover in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)
    report(Step(f"{name} is ready in {target}."))
