"""Models that can be chosen without typing: prepared, local or in the Hub's cache. No torch."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import constants

from ckv_core.models.store import models_folder, read_manifest
from ckv_core.request.compare_request import DEFAULT_MODEL


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One entry of a model list.

    Attributes:
        name: what `--model` and the run request take.
        source: where it was found.
        ready: False if it is prepared or downloaded at first use.
        note: one line for the reader.
    """

    name: str
    source: Literal["default", "folder", "hub cache", "environment"]
    ready: bool
    note: str


def list_models() -> list[ModelChoice]:
    """The default model, that of `CKV_MODEL`, local folders, then the Hub's cache; no doubles.

    Cheap: reads folder listings and configs. Whether the engine can serve a model is checked
    when it is loaded.
    """
    found = [_default_choice(), *_folder_choices(), *_hub_choices()]
    wanted = os.environ.get("CKV_MODEL", "").strip()
    if wanted and wanted not in {choice.name for choice in found}:
        there = Path(wanted).expanduser().exists()
        note = "from CKV_MODEL" if there else "from CKV_MODEL; fetched at first use"
        found.insert(1, ModelChoice(wanted, "environment", there, note))
    return found


def _default_choice() -> ModelChoice:
    ready = read_manifest(models_folder() / DEFAULT_MODEL) is not None
    note = "ready" if ready else "will be prepared at first use (about 30 seconds)"
    return ModelChoice(DEFAULT_MODEL, "default", ready, note)


def _folder_choices() -> Iterator[ModelChoice]:
    for folder in _subfolders(models_folder()):
        if folder.name == DEFAULT_MODEL or folder.name.startswith("."):
            continue
        has_gguf = next(folder.glob("*.gguf"), None) is not None
        if has_gguf or _is_causal_checkpoint(folder):
            yield ModelChoice(folder.name, "folder", ready=True, note=str(folder))


def _hub_choices() -> Iterator[ModelChoice]:
    for repository in _subfolders(Path(constants.HF_HUB_CACHE)):
        kind, _, name = repository.name.partition("--")
        if kind == "models" and any(
            map(_is_causal_checkpoint, _subfolders(repository / "snapshots"))
        ):
            yield ModelChoice(
                name.replace("--", "/"), "hub cache", ready=True, note="in the Hub's cache"
            )


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _is_causal_checkpoint(folder: Path) -> bool:
    try:
        architectures = json.loads((folder / "config.json").read_text("utf-8"))["architectures"]
        causal = any(str(architecture).endswith("ForCausalLM") for architecture in architectures)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return causal and next(folder.glob("*.safetensors"), None) is not None
