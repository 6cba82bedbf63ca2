"""Notices weights whose bits changed: since they were published, converted, or last loaded here."""

import re
from pathlib import Path

from ckv_core.errors import ModelError
from ckv_core.models.checkpoint import Checkpoint
from ckv_core.models.store import MANIFEST_NAME, combine, file_hashes, hashes_before, read_manifest


def checked_sha256(checkpoint: Checkpoint) -> str:
    """One hash over the weights files; of a converted GGUF that file's.

    A file is read once; it counts as the same while path, size, time and inode are. ModelError
    where it holds other bits than it should.
    """
    if checkpoint.converted_from is not None:  # its folder was compared when it was found
        return checkpoint.converted_from
    files = checkpoint.weights()
    before = hashes_before(files)
    hashes = file_hashes(files)
    sha256 = combine(hashes)
    for path in files:
        published = _published_sha256(path)
        if published is not None and published != hashes[path.name]:
            raise ModelError(
                f"{path.name} of {checkpoint.name!r} is damaged in the Hub's cache: its SHA-256 is "
                f"not the published one. Delete {path.resolve()} and load the model again."
            )
    manifest = read_manifest(checkpoint.folder)
    if manifest is not None and manifest.sha256 != sha256:
        raise ModelError(
            f"The weights of {checkpoint.name!r} are not those of its {MANIFEST_NAME}; copy the "
            "model again, or delete that file if you changed them."
        )
    changed = [
        path.name for path in files if before.get(path.name, "") not in ("", hashes[path.name])
    ]
    if changed:
        raise ModelError(
            f"The weights of {checkpoint.name!r} are not those that were loaded here before "
            f"({changed[0]} changed). If you replaced them, load the model once more; else copy or "
            "download it again."
        )
    return sha256


def _published_sha256(path: Path) -> str | None:
    """The Hub's cache names a large file after its hash."""
    real = path.resolve()
    is_blob = real.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", real.name)
    return real.name if is_blob else None
