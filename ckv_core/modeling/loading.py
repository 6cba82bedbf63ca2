"""Loads a model or only its tokenizer, by name, and says in one sentence why it cannot."""

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from ckv_core.config import DEVICES, DTYPES
from ckv_core.errors import ConfigError, ModelError
from ckv_core.modeling.capability import check_config
from ckv_core.modeling.checkpoint import Checkpoint, find_checkpoint
from ckv_core.modeling.loaded import LoadedModel, wrap_model
from ckv_core.modeling.sources import Report


def silent(_sentence: str) -> None:
    """A report that nobody reads."""


def load_tokenizer(name: str, report: Report = silent) -> PreTrainedTokenizerBase:
    """Load a tokenizer without any weights; cheap, for live token counts.

    Raises:
        ModelError: unknown or incomplete model.
    """
    return _read_tokenizer(find_checkpoint(name, report, with_weights=False))


def load_model(
    name: str, device: str = "auto", dtype: str = "auto", report: Report = silent
) -> LoadedModel:
    """Load a model for the engine; prepared or downloaded first where needed.

    Args:
        name: the default name, a Hugging Face id, a local folder or a GGUF file.
        device: auto takes CUDA where there is one.
        dtype: auto is float32 on the CPU and the checkpoint's own type on CUDA.
        report: told of each step in a sentence.

    Raises:
        ConfigError: device or dtype unknown, or no CUDA here.
        ModelError: the model is unknown, incomplete, damaged or not supported.
    """
    place = _place(device)
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}.")
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the report tells each step
    # Config first: a model that cannot be served is refused before its weights are fetched.
    light = find_checkpoint(name, report, with_weights=False)
    check_config(_read_config(light), name)
    checkpoint = find_checkpoint(name, report, with_weights=True)
    report(f"Loading {name} on {place}.")
    model = _read_model(checkpoint, place, dtype)
    return wrap_model(model, _read_tokenizer(checkpoint), name=name, sha256=checkpoint.sha256())


def _place(device: str) -> str:
    if device not in DEVICES:
        raise ConfigError(f"device must be one of {', '.join(DEVICES)}; got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("No CUDA device can be used here; choose device cpu or auto.")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def _read_model(checkpoint: Checkpoint, place: str, dtype: str) -> PreTrainedModel:
    if dtype == "auto" and (place == "cpu" or checkpoint.gguf):
        dtype = "float32"  # a GGUF has no float type of its own; float32 holds its values exactly
    settings: dict[str, Any] = {
        "dtype": dtype if dtype == "auto" else getattr(torch, dtype),
        "trust_remote_code": False,
        "use_safetensors": True,
        "output_loading_info": True,
    }
    if place == "cuda":
        # The first GPU, further ones only where it is too small; "auto" spreads any model evenly,
        # and every layer that lies elsewhere costs a copy per step.
        settings["device_map"] = "sequential"
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(checkpoint.folder), **_gguf_keyword(checkpoint), **settings
        )
    except torch.OutOfMemoryError as error:
        raise _too_large(checkpoint) from error
    except Exception as error:  # transformers raises what it likes; the file's name must be said
        raise _unreadable(checkpoint, "weights", error) from error
    model: PreTrainedModel
    model, info = loaded
    _check_complete(checkpoint, model, info)
    return model


def _check_complete(checkpoint: Checkpoint, model: PreTrainedModel, info: dict[str, Any]) -> None:
    """Refuse what transformers would fill up with random numbers, or leave off the device."""
    lacking = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if lacking:
        raise ModelError(
            f"The weights of {checkpoint.name!r} do not match its config: {len(lacking)} tensors "
            f"are missing or of another size, {lacking[0]} first. Download the model again."
        )
    places = set(map(str, getattr(model, "hf_device_map", {}).values()))
    if places & {"cpu", "disk"}:
        raise _too_large(checkpoint)


def _too_large(checkpoint: Checkpoint) -> ModelError:
    return ModelError(
        f"{checkpoint.name!r} does not fit into the GPU's memory; choose dtype bfloat16 or "
        "device cpu."
    )


def _read_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            str(checkpoint.folder), trust_remote_code=False, **_gguf_keyword(checkpoint)
        )
    except Exception as error:  # transformers raises what it likes
        raise _unreadable(checkpoint, "config", error) from error
    if checkpoint.gguf:
        config.quantization_config = None  # its weights are dequantised when read
    return config


def _read_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(checkpoint.folder), trust_remote_code=False, **_gguf_keyword(checkpoint)
        )
    except Exception as error:  # transformers raises what it likes
        raise _unreadable(checkpoint, "tokenizer", error) from error
    return tokenizer


def _gguf_keyword(checkpoint: Checkpoint) -> dict[str, str]:
    return {"gguf_file": checkpoint.gguf} if checkpoint.gguf else {}


def _unreadable(checkpoint: Checkpoint, part: str, error: Exception) -> ModelError:
    if "trust_remote_code" in str(error):
        return ModelError(
            f"{checkpoint.name!r} needs Python code from its repository, which is never run here; "
            "choose a model that transformers has built in."
        )
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ModelError(f"The {part} of {checkpoint.name!r} cannot be read ({reason}).")
