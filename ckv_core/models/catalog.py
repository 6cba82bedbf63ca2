"""Models that can be chosen without typing: at hand, and small public ones. No torch."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import constants

from ckv_core.base.home import models_folder
from ckv_core.models.store import read_manifest
from ckv_core.records.run_request import DEFAULT_MODEL


@dataclass(frozen=True, slots=True)
class ModelChoice:
    name: str  # what `--model` and the run request take
    source: Literal["default", "folder", "hub cache", "environment"]  # where it was found
    ready: bool  # False if it is prepared or downloaded at first use
    note: str  # one line for the reader


def list_models() -> list[ModelChoice]:
    """The default model, that of `CKV_MODEL`, local folders, then the Hub's cache; no doubles.

    Cheap: reads folder listings and configs. Whether the engine can serve a model is checked
    when it is loaded.
    """
    ready = read_manifest(models_folder() / DEFAULT_MODEL) is not None
    note = "ready" if ready else "will be prepared at first use (about 30 seconds)"
    default = ModelChoice(DEFAULT_MODEL, "default", ready, note)
    choices = [default]
    for folder in _subfolders(models_folder()):
        if folder.name == DEFAULT_MODEL or folder.name.startswith("."):
            continue
        has_gguf = next(folder.glob("*.gguf"), None) is not None
        if has_gguf or _is_causal_checkpoint(folder):
            choices.append(ModelChoice(folder.name, "folder", ready=True, note=str(folder)))
    for repository in _subfolders(Path(constants.HF_HUB_CACHE)):
        kind, _, name = repository.name.partition("--")
        snapshots = _subfolders(repository / "snapshots")
        if kind == "models" and any(map(_is_causal_checkpoint, snapshots)):
            name, note = name.replace("--", "/"), "in the Hub's cache"
            choices.append(ModelChoice(name, "hub cache", ready=True, note=note))
    wanted = os.environ.get("CKV_MODEL", "").strip()
    if wanted and wanted not in {choice.name for choice in choices}:
        there = Path(wanted).expanduser().exists()
        note = "from CKV_MODEL" if there else "from CKV_MODEL; fetched at first use"
        choices.insert(1, ModelChoice(wanted, "environment", there, note))
    return choices


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


FLOAT32_BYTES = 4  # what `--dtype auto` is on a CPU


@dataclass(frozen=True, slots=True)
class SuggestedModel:
    """One model as its config has it."""

    name: str  # what a run request takes
    parameters: int  # without those that it has twice (tied embeddings)
    layers: int
    kv_heads: int
    head_dim: int
    context: int  # tokens that it was trained for
    license: str  # of the weights

    @property
    def weights_bytes(self) -> int:
        return self.parameters * FLOAT32_BYTES

    @property
    def token_bytes(self) -> int:
        """Keys and values of one prompt token in float32."""
        return 2 * self.layers * self.kv_heads * self.head_dim * FLOAT32_BYTES


SUGGESTED = (
    SuggestedModel(DEFAULT_MODEL, 134_515_008, 30, 3, 64, 8_192, "Apache-2.0"),
    SuggestedModel(
        "HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120, 32, 5, 64, 8_192, "Apache-2.0"
    ),
    SuggestedModel("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768, 24, 2, 64, 32_768, "Apache-2.0"),
    SuggestedModel("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304, 28, 2, 128, 32_768, "Apache-2.0"),
    SuggestedModel(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384, 24, 32, 64, 8_192, "Apache-2.0"
    ),
    SuggestedModel("Qwen/Qwen3-4B-Instruct-2507", 4_022_468_096, 36, 8, 128, 262_144, "Apache-2.0"),
    SuggestedModel("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, 28, 4, 128, 32_768, "Apache-2.0"),
)
