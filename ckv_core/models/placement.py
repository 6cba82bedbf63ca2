"""Where a model's weights go, and in what type: one GPU where they fit, else several in turn."""

import os
import sys
from itertools import accumulate

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from ckv_core.errors import ModelTooLargeError
from ckv_core.models.attention import ATTENTION_NAME
from ckv_core.runtime.device_memory import available_bytes
from ckv_core.runtime.devices import CUDA_LIKE
from ckv_core.runtime.memory_line import human_bytes

_WEIGHTS_SHARE = 0.9  # of a GPU's free memory; the rest is for runs
_BFLOAT16_FROM = (8, 0)  # compute capability
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def gpus() -> list[torch.device]:
    """The GPUs that PyTorch sees."""
    return [torch.device(CUDA_LIKE[-1], index) for index in range(torch.cuda.device_count())]


def configure_allocator() -> None:
    """Let CUDA's allocator grow its segments, unless its user has settings of their own.

    Caches of ever other sizes come and go: fixed segments would leave holes that none fits into.
    """
    if sys.platform == "linux" and not any(name in os.environ for name in _SETTINGS):
        os.environ[_SETTINGS[0]] = "expandable_segments:True"


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

    Raises:
        ModelTooLargeError: all GPUs together are too small.
    """
    with torch.device("meta"):
        skeleton: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, trust_remote_code=False, attn_implementation=ATTENTION_NAME
        )
    free = {device: int(_WEIGHTS_SHARE * available_bytes(device)) for device in gpus()}
    needed = _nbytes(skeleton)
    for device, room in free.items():
        if needed <= room:
            return {"": device}
    parts = _parts(skeleton)
    for count in range(2, len(free) + 1):
        rooms = dict(list(free.items())[:count])
        placed = _in_turn(parts, rooms)
        if placed is not None:
            return placed
    rooms_told = " + ".join(human_bytes(room) for room in free.values())
    raise ModelTooLargeError(
        f"{name!r} takes {human_bytes(needed)} in {str(dtype).removeprefix('torch.')}, and the "
        f"GPU memory has room for {rooms_told} of weights; choose a smaller model, dtype bfloat16 "
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
