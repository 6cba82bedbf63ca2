"""`torch`, imported when it is first used, so that parts can be described without it."""

from typing import TYPE_CHECKING, Any

__all__ = ["Generator", "Tensor", "torch"]

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
