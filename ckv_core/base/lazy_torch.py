"""`torch`, imported when it is first used, so that parts can be described without it.

And the check of a tensor's shape where it enters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Generator", "Tensor", "check_shape", "torch"]

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor
else:
    Generator = Tensor = Any  # for annotations, which nothing evaluates

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            from importlib import import_module  # noqa: PLC0415 - the point of this file

            return getattr(import_module("torch"), name)

    torch = _Torch()


def check_shape(name: str, tensor: Tensor, axes: str, sizes: dict[str, int]) -> None:
    """Check a tensor's axes, "kv_heads prompt_len head_dim", and remember sizes not yet known.

    ValueError, a programming error, says what was expected and what came.
    """
    names = axes.split()
    if tensor.dim() != len(names):
        raise ValueError(f"{name} must be [{axes}], got shape {list(tensor.shape)}")
    for axis, size in zip(names, tensor.shape, strict=True):
        if sizes.setdefault(axis, size) != size:
            raise ValueError(f"{name} must be [{axes}] with {sizes}, got {list(tensor.shape)}")
