"""Loads a model or only its tokenizer, by name, and says in one sentence why it cannot.

Its weights go to one GPU where they fit, else to several in turn.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar, set_tqdm_hook

from ckv_core.base.device_memory import available_bytes
from ckv_core.base.devices import CUDA_LIKE
from ckv_core.base.home import models_folder
from ckv_core.base.memory_line import human_bytes
from ckv_core.errors import (
    CkvError,
    ConfigError,
    ModelError,
    ModelTooLargeError,
    first_line,
    is_device_lost,
    is_out_of_memory,
)
from ckv_core.models.attention import ATTENTION_NAME
from ckv_core.models.checkpoint import Checkpoint, find_checkpoint
from ckv_core.models.checks import check_parameters, check_sizes, checked_sha256, weight_shapes
from ckv_core.models.conversion import convert_gguf
from ckv_core.models.geometry import DEQUANTISED, check_config, quantization, skeleton
from ckv_core.models.loaded import LoadedModel, wrap_model
from ckv_core.models.steps import STEP_S, Meter, Report, Step, read_limit_s, silent
from ckv_core.models.store import (
    Manifest,
    is_prepared,
    known_sha256,
    prepare,
    weights_sha256,
    write_manifest,
)
from ckv_core.records.run_request import DEVICES, DTYPES

_WEIGHTS_SHARE = 0.9  # of a GPU's free memory; the rest is for runs
_BFLOAT16_FROM = (8, 0)  # compute capability
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def load_model(
    name: str, device: str = "auto", dtype: str = "auto", report: Report = silent
) -> LoadedModel:
    """Load a model for the engine; prepared or downloaded first where needed.

    Args:
        name: the default name, a Hugging Face id, a local folder or a GGUF file.
        device: auto takes CUDA where there is one.
        dtype: auto is float32 on the CPU; on CUDA bfloat16, or float16 where a GPU lacks that.
        report: called with each step, and how long it may take; what it raises ends the load.

    Raises:
        ConfigError: device or dtype unknown, or no CUDA here.
        ModelError: the model is unknown, incomplete, damaged, changed, not supported or too large.
    """
    if device not in DEVICES:
        raise ConfigError(f"device must be one of {', '.join(DEVICES)}; got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("No CUDA device can be used here; choose device cpu or auto.")
    best = "cuda" if device == "auto" and torch.cuda.is_available() else "cpu"
    place = best if device == "auto" else device
    # Before anything else uses CUDA its allocator is to grow its segments, unless its user has
    # settings: caches of other sizes come and go, and fixed segments would leave holes.
    has_settings = any(name in os.environ for name in _SETTINGS)
    if place == "cuda" and sys.platform == "linux" and not has_settings:
        os.environ[_SETTINGS[0]] = "expandable_segments:True"
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
    report(Step(f"Testing {name} on a few tokens.", limit_s=limit_s))
    return wrap_model(model, tokenizer, name=name, sha256=sha256)


def _read_model(
    checkpoint: Checkpoint, config: PreTrainedConfig, wanted: tuple[str, str], report: Report
) -> PreTrainedModel:
    """The weights, on the wanted place and in the wanted type."""
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
        with _counting(Meter(report, f"Loading {checkpoint.name}", "tensors")):
            loaded: Any = AutoModelForCausalLM.from_pretrained(str(checkpoint.folder), **settings)
    except CkvError:  # what the report raises
        raise
    except torch.OutOfMemoryError as error:
        raise ModelTooLargeError(
            f"{checkpoint.name!r} does not fit into the GPU's memory; choose a smaller model, "
            "dtype bfloat16 or device cpu."
        ) from error
    except Exception as error:  # transformers raises what it likes; the message must name the file
        if is_out_of_memory(error) or is_device_lost(error):
            raise
        raise _unreadable(checkpoint, "weights", error) from error
    model: PreTrainedModel
    model, info = loaded
    # Transformers would fill these up with random numbers.
    lacking = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if lacking:
        raise ModelError(
            f"The weights of {checkpoint.name!r} do not match its config: {len(lacking)} tensors "
            f"are missing or of another size, {lacking[0]} first. Download the model again."
        )
    return model


@contextmanager
def _counting(meter: Meter) -> Iterator[None]:
    """Inside, the meter counts each tensor that transformers has loaded."""

    def hook(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        items = list(args[0] if args else kwargs.get("iterable", ()))

        def counted() -> Iterator[Any]:
            for done, item in enumerate(items):
                meter.at(done, len(items))
                yield item

        return counted()

    before = set_tqdm_hook(hook)
    try:
        yield
    finally:
        set_tqdm_hook(before)


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
    if quantization(config) in DEQUANTISED:
        config.quantization_config["dequantize"] = True
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
    return ModelError(f"The {part} of {checkpoint.name!r} cannot be read ({first_line(error)}).")


def gpus() -> list[torch.device]:
    """The GPUs that PyTorch sees."""
    return [torch.device(CUDA_LIKE[-1], index) for index in range(torch.cuda.device_count())]


def resolved_dtype(dtype: str, place: str) -> torch.dtype:
    """The type that a name means on cpu or cuda; auto is what the fast kernels take there."""
    if dtype != "auto":
        found: torch.dtype = getattr(torch, dtype)
        return found
    if place == "cpu":
        return torch.float32
    capabilities = [torch.cuda.get_device_capability(each) for each in gpus()]
    return torch.bfloat16 if min(capabilities) >= _BFLOAT16_FROM else torch.float16


def device_map(config: PreTrainedConfig, dtype: torch.dtype, name: str) -> dict[str, torch.device]:
    """The GPU of each module: as few GPUs as hold the weights, each as full as the others.

    ModelTooLargeError where all GPUs together are too small.
    """
    model = skeleton(config, dtype)
    free = {device: int(_WEIGHTS_SHARE * available_bytes(device)) for device in gpus()}
    needed = _nbytes(model)
    for device, room in free.items():
        if needed <= room:
            return {"": device}
    for count in range(2, len(free) + 1):
        if placed := _in_turn(_parts(model), dict(list(free.items())[:count])):
            return placed
    rooms_text = " + ".join(human_bytes(room) for room in free.values())
    raise ModelTooLargeError(
        f"{name!r} takes {human_bytes(needed)} in {str(dtype).removeprefix('torch.')}, and the "
        f"GPU memory has room for {rooms_text} of weights; choose a smaller model, dtype bfloat16 "
        "or device cpu."
    )


def _parts(model: PreTrainedModel) -> list[list[tuple[str, int]]]:
    """Names and bytes of modules in the order in which a pass goes through them.

    Those of one list share tensors or are used together, so they go to one GPU.
    """
    decoder = model.get_decoder()  # type: ignore[no-untyped-call]
    names = {id(module): name for name, module in model.named_modules()}
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    tied = {id(p) for p in decoder.parameters()}
    begin, end, blocks = [], [], []
    for module in (*model.children(), *decoder.children()):
        part = (names[id(module)], _nbytes(module))
        shares = any(id(p) in tied for p in module.parameters())
        if module is decoder:
            continue
        if module is decoder.layers:
            blocks = [[(names[id(each)], _nbytes(each))] for each in module]
        elif (module is head and not shares) or module is getattr(decoder, "norm", None):
            end.append(part)
        else:  # embedding, RoPE, and a head that is the embedding
            begin.append((part[0], 0 if module is head else part[1]))
    return [begin, *blocks, end]


def _in_turn(
    parts: list[list[tuple[str, int]]], rooms: dict[torch.device, int]
) -> dict[str, torch.device] | None:
    """Parts one after another, by where their middle lies in the weights; None if too large."""
    sizes = [sum(size for _, size in part) for part in parts]
    total, borders = sum(sizes), list(accumulate(rooms.values()))
    devices, used = list(rooms), dict.fromkeys(rooms, 0)
    placed: dict[str, torch.device] = {}
    for part, size, end in zip(parts, sizes, accumulate(sizes), strict=True):
        middle = (end - size / 2) / total * borders[-1]
        device = devices[sum(middle >= border for border in borders[:-1])]
        used[device] += size
        placed |= {name: device for name, _ in part}
    return placed if all(used[device] <= room for device, room in rooms.items()) else None


def _nbytes(module: nn.Module) -> int:
    return sum(each.nbytes for each in (*module.parameters(), *module.buffers()))


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
        shapes = weight_shapes(checkpoint)
        check_sizes(checkpoint, shapes)
        needed = 4 * sum(prod(shape) for shape in shapes.values())
        if needed > (free := shutil.disk_usage(work).free):
            raise ModelError(
                f"{gguf.name} takes {human_bytes(needed)} once it is dequantised, and "
                f"{work.parent} has {human_bytes(free)} left; make room there or set CKV_HOME to "
                "another folder."
            )
        convert_gguf(gguf, work, report)
        return write_manifest(work, f"GGUF {gguf.name}, SHA-256 {sha256}")

    prepare(_folder(sha256), checkpoint.name, fill, report)
    return Checkpoint(checkpoint.name, _folder(sha256), converted_from=sha256)


def _folder(sha256: str) -> Path:
    return models_folder() / ".converted" / sha256
