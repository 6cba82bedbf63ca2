"""Models that can be chosen without typing: at hand, and small public ones. No torch."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import constants

from ckv_core.base.home import models_folder
from ckv_core.errors import ModelError
from ckv_core.models.shape import ModelShape, shape_in
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


WHAT_CAN_BE_GIVEN = (
    f"Give {DEFAULT_MODEL}, a Hugging Face id such as Qwen/Qwen3-0.6B, or a local folder with "
    "safetensors or a GGUF file."
)


def local_path(name: str) -> Path | None:
    """Where this model lies: its folder under CKV_HOME, or any path; None for a Hub id.

    ModelError where the name can be neither.
    """
    given = name.strip()
    try:
        candidates = [Path(given).expanduser()] if given else []
        if Path(given).name == given and not given.startswith("."):
            candidates.insert(0, models_folder() / given)
        found = next((path for path in candidates if path.exists()), None)
    except (OSError, RuntimeError, ValueError):  # too long for a path, or the home of nobody
        found = None
    is_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", given, re.ASCII)
    if found is None and not is_id and given != DEFAULT_MODEL:
        if given.startswith((".", "/", "~")) or given.endswith(".gguf"):
            raise ModelError(f"There is no model at {given[:200]!r}. {WHAT_CAN_BE_GIVEN}")
        raise ModelError(f"The model {given[:100]!r} is unknown. {WHAT_CAN_BE_GIVEN}")
    return found


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


# What their config.json on the Hugging Face Hub has, in this order. The form offers them, and
# `ckv plan` knows them by name; it takes any config besides.
_KEYS = (
    "model_type num_hidden_layers hidden_size intermediate_size num_attention_heads "
    "num_key_value_heads vocab_size max_position_embeddings tie_word_embeddings "
    "head_dim num_experts num_experts_per_tok moe_intermediate_size"  # of a model with experts
)
_MODELS = f"""
meta-llama/Llama-3.1-8B-Instruct    llama 32 4096 14336 32 8 128256 131072 0
Qwen/Qwen3-8B                       qwen3 36 4096 12288 32 8 151936 40960 0
{DEFAULT_MODEL}               llama 30 576 1536 9 3 49152 8192 1
HuggingFaceTB/SmolLM2-360M-Instruct llama 32 960 2560 15 5 49152 8192 1
Qwen/Qwen2.5-0.5B-Instruct          qwen2 24 896 4864 14 2 151936 32768 1
Qwen/Qwen2.5-1.5B-Instruct          qwen2 28 1536 8960 12 2 151936 32768 1
HuggingFaceTB/SmolLM2-1.7B-Instruct llama 24 2048 8192 32 32 49152 8192 1
Qwen/Qwen3-4B-Instruct-2507         qwen3 36 2560 9728 32 8 151936 262144 1
Qwen/Qwen2.5-7B-Instruct            qwen2 28 3584 18944 28 4 152064 32768 0
Qwen/Qwen3-30B-A3B                  qwen3_moe 48 2048 6144 32 4 151936 40960 0 128 128 8 768
"""


def _known() -> Iterator[ModelShape]:
    for name, kind, *words in map(str.split, _MODELS.strip().splitlines()):
        config = dict(zip(_KEYS.split(), (kind, *map(int, words)), strict=False))
        yield ModelShape.of(config, name)


KNOWN = {shape.name: shape for shape in _known()}


def planned_shape(name: str, *, with_paths: bool = True) -> ModelShape:
    """The shape of a model by name, of a folder or of a config.json; none is downloaded.

    ModelError where it is unknown. Without `with_paths` only what `list_models` and `KNOWN` have.
    """
    given = name.strip()
    short = {each.rpartition("/")[2].removesuffix("-Instruct").lower(): each for each in KNOWN}
    known = given if given in KNOWN else short.get(given.removesuffix("-Instruct").lower())
    if known:
        return KNOWN[known]
    listed = {each.name for each in list_models() if each.source in ("folder", "hub cache")}
    folders = [models_folder() / given] if given in listed else []
    snapshots = Path(constants.HF_HUB_CACHE) / f"models--{given.replace('/', '--')}" / "snapshots"
    folders += _subfolders(snapshots) if given in listed else []
    folders += [Path(given).expanduser()] if with_paths and given else []
    for folder in folders:
        if (folder / "config.json").is_file() or folder.is_file():
            return shape_in(folder, given)
    raise ModelError(
        f"The shape of {given[:100]!r} is not known here; give a config.json"
        f"{' or its folder' if with_paths else ''}, or one of {', '.join(KNOWN)}."
    )
