"""GGUF files are dequantised once and kept as folders under CKV_HOME/models/.converted."""

import shutil
from math import prod
from pathlib import Path

from ckv_core.errors import ModelError
from ckv_core.models.checkpoint import Checkpoint
from ckv_core.models.prepared import is_prepared, prepare
from ckv_core.models.sizes import check_sizes, weight_shapes
from ckv_core.models.steps import STEP_S, Report, Step, read_limit_s
from ckv_core.models.store import Manifest, known_sha256, weights_sha256, write_manifest
from ckv_core.runtime.home import models_folder
from ckv_core.runtime.memory_line import human_bytes


def kept_conversion(checkpoint: Checkpoint) -> Checkpoint:
    """The conversion of a GGUF where it is there already, else the checkpoint as it is."""
    if checkpoint.gguf is None:
        return checkpoint
    sha256 = known_sha256(checkpoint.folder / checkpoint.gguf)
    if sha256 is None or not is_prepared(_folder(sha256)):
        return checkpoint
    return Checkpoint(checkpoint.name, _folder(sha256), converted_from=sha256)


def header_limit_s(checkpoint: Checkpoint) -> float:
    """How long reading config and tokenizer may take; a GGUF lists its vocabulary in a slow way."""
    return STEP_S if checkpoint.gguf is None else read_limit_s(8 * checkpoint.nbytes)


def converted(checkpoint: Checkpoint, report: Report) -> Checkpoint:
    """A folder with the weights of a GGUF, made now if it is not there yet.

    ModelError where the file is damaged, or there is no room for its float32 weights.
    """
    if checkpoint.gguf is None:
        return checkpoint
    gguf = checkpoint.folder / checkpoint.gguf
    sentence = f"Checking the SHA-256 of {gguf.name}."
    report(Step(sentence, limit_s=header_limit_s(checkpoint)))
    sha256 = weights_sha256([gguf])

    def fill(work: Path) -> Manifest:
        # Only whoever converts pays for torch.
        from ckv_core.models.conversion import convert_gguf  # noqa: PLC0415

        shapes = weight_shapes(checkpoint)
        check_sizes(checkpoint, shapes)
        _check_room(gguf, work, sum(prod(shape) for shape in shapes.values()))
        convert_gguf(gguf, work, report)
        return write_manifest(work, f"GGUF {gguf.name}, SHA-256 {sha256}")

    prepare(_folder(sha256), checkpoint.name, fill, report)
    return Checkpoint(checkpoint.name, _folder(sha256), converted_from=sha256)


def _folder(sha256: str) -> Path:
    return models_folder() / ".converted" / sha256


def _check_room(gguf: Path, work: Path, parameters: int) -> None:
    needed, free = parameters * 4, shutil.disk_usage(work).free
    if needed > free:
        raise ModelError(
            f"{gguf.name} takes {human_bytes(needed)} once it is dequantised, and {work.parent} "
            f"has {human_bytes(free)} left; make room there or set CKV_HOME to another folder."
        )
