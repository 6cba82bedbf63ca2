"""Loads a model or only its tokenizer, by name, and says in one sentence why it cannot."""

from collections.abc import Iterator
from contextlib import contextmanager
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
from transformers.utils.logging import disable_progress_bar, set_tqdm_hook

from ckv_core.errors import (
    CkvError,
    ConfigError,
    ModelError,
    ModelTooLargeError,
    is_device_lost,
    is_out_of_memory,
)
from ckv_core.models.attention import ATTENTION_NAME
from ckv_core.models.capability import check_config
from ckv_core.models.checkpoint import Checkpoint, find_checkpoint
from ckv_core.models.gguf_store import converted, header_limit_s, kept_conversion
from ckv_core.models.loaded import LoadedModel, wrap_model
from ckv_core.models.placement import configure_allocator, device_map, resolved_dtype
from ckv_core.models.sizes import check_parameters, check_sizes, weight_shapes
from ckv_core.models.steps import Meter, Report, Step, read_limit_s, silent
from ckv_core.models.weights import checked_sha256
from ckv_core.request.compare_request import DEVICES, DTYPES


def load_model(
    name: str, device: str = "auto", dtype: str = "auto", report: Report = silent
) -> LoadedModel:
    """Load a model for the engine; prepared or downloaded first where needed.

    Args:
        name: the default name, a Hugging Face id, a local folder or a GGUF file.
        device: auto takes CUDA where there is one.
        dtype: auto is float32 on the CPU; on CUDA bfloat16, or float16 where a GPU lacks that.
        report: told of each step, and how long it may take; what it raises ends the load.

    Raises:
        ConfigError: device or dtype unknown, or no CUDA here.
        ModelError: the model is unknown, incomplete, damaged, changed, not supported or too large.
    """
    place = _place(device)
    if place == "cuda":
        configure_allocator()  # before anything is asked of CUDA
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}.")
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the report tells each step
    # Config first: a model that cannot be served is refused before its weights are fetched.
    light = kept_conversion(find_checkpoint(name, report, with_weights=False))
    report(Step(f"Checking the config of {name}.", limit_s=header_limit_s(light)))
    config = read_config(light)
    check_config(config, name)
    checkpoint = converted(find_checkpoint(name, report, with_weights=True), report)
    report(Step(f"Checking the config of {name} against its weights."))
    if checkpoint != light:
        config = read_config(checkpoint)
    check_parameters(checkpoint, weight_shapes(checkpoint), check_config(config, name))
    tokenizer = read_tokenizer(checkpoint)
    sentence = f"Checking the weights of {name} (SHA-256)."
    report(Step(sentence, limit_s=read_limit_s(checkpoint.nbytes)))
    sha256 = checked_sha256(checkpoint)
    limit_s = read_limit_s(checkpoint.nbytes)
    report(Step(f"Loading {name} on {place}.", limit_s=limit_s))
    model = _read_model(checkpoint, config, (place, dtype), report)
    report(Step(f"Trying {name} out.", limit_s=limit_s))
    return wrap_model(model, tokenizer, name=name, sha256=sha256)


def _place(device: str) -> str:
    if device not in DEVICES:
        raise ConfigError(f"device must be one of {', '.join(DEVICES)}; got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("No CUDA device can be used here; choose device cpu or auto.")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def _read_model(
    checkpoint: Checkpoint, config: PreTrainedConfig, wanted: tuple[str, str], report: Report
) -> PreTrainedModel:
    """The weights, on a place and in a type as asked for."""
    place, dtype = wanted
    settings: dict[str, Any] = {
        "config": config,
        "dtype": resolved_dtype(dtype, place),
        "attn_implementation": ATTENTION_NAME,
        "trust_remote_code": False,
        "use_safetensors": True,
        "output_loading_info": True,
    }
    if place == "cuda":
        settings["device_map"] = device_map(config, settings["dtype"], checkpoint.name)
    try:
        with _tensors_told(Meter(report, f"Loading {checkpoint.name}", "tensors")):
            loaded: Any = AutoModelForCausalLM.from_pretrained(str(checkpoint.folder), **settings)
    except CkvError:  # what the report raises
        raise
    except torch.OutOfMemoryError as error:
        raise ModelTooLargeError(
            f"{checkpoint.name!r} does not fit into the GPU's memory; choose a smaller model, "
            "dtype bfloat16 or device cpu."
        ) from error
    except Exception as error:  # transformers raises what it likes; the file's name must be said
        if is_out_of_memory(error) or is_device_lost(error):
            raise
        raise _unreadable(checkpoint, "weights", error) from error
    model: PreTrainedModel
    model, info = loaded
    _check_complete(checkpoint, info)
    return model


@contextmanager
def _tensors_told(meter: Meter) -> Iterator[None]:
    """Inside, the meter is told of each tensor that transformers has loaded."""

    def hook(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        items = list(args[0] if args else kwargs.get("iterable", ()))

        def told() -> Iterator[Any]:
            for done, item in enumerate(items):
                meter.at(done, len(items))
                yield item

        return told()

    before = set_tqdm_hook(hook)
    try:
        yield
    finally:
        set_tqdm_hook(before)


def _check_complete(checkpoint: Checkpoint, info: dict[str, Any]) -> None:
    """Refuse what transformers would fill up with random numbers."""
    lacking = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if lacking:
        raise ModelError(
            f"The weights of {checkpoint.name!r} do not match its config: {len(lacking)} tensors "
            f"are missing or of another size, {lacking[0]} first. Download the model again."
        )


def read_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """A model's config, once its sizes were found to be those of its weights."""
    check_sizes(checkpoint, weight_shapes(checkpoint))
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            str(checkpoint.folder), trust_remote_code=False, **_gguf_keyword(checkpoint)
        )
    except Exception as error:  # transformers raises what it likes
        raise _unreadable(checkpoint, "config", error) from error
    if checkpoint.gguf:
        config.quantization_config = None  # its weights are dequantised when read
    # A config may name code of a repository here, which transformers would fetch and run.
    config._attn_implementation = ATTENTION_NAME
    config._experts_implementation = None
    return config


def read_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
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
