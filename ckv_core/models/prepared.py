"""Folders under CKV_HOME/models that are made once, by one process, whole or not at all."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from ckv_core.errors import ModelError
from ckv_core.models.steps import Report, Step
from ckv_core.models.store import Manifest, is_intact, read_manifest, remember
from ckv_core.runtime.home import models_folder

# A second process waits this long for the first one's conversion or download.
_WAIT_SECONDS = 3600.0


def prepare(target: Path, name: str, fill: Callable[[Path], Manifest], report: Report) -> Path:
    """A folder, ready to load; filled now if it is not there yet.

    Safe to call from several processes: one prepares, the others wait for it. A process that
    dies half-way leaves nothing that a later one would take for whole.

    `fill`: writes into an empty folder and gives its manifest; ModelError where it cannot.
    `report`: told of each step; not called if the folder is ready.
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
    """Whether the folder is whole, to the bit."""
    try:
        manifest = read_manifest(target)
        return manifest is not None and is_intact(target, manifest)
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
        remember(target, manifest)
    except OSError as error:
        raise ModelError(
            f"{name} could not be written to {target} ({error.strerror or error}); make "
            "room there or set CKV_HOME to another folder."
        ) from error
    finally:
        for leftover in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)
    report(Step(f"{name} is ready in {target}."))
