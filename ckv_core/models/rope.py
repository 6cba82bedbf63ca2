"""RoPE whose factors depend on the length read (longrope): a text read in pieces is as if whole."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def length_dependent(model: nn.Module) -> list[nn.Module]:
    """The model's modules that pick short or long factors by the last position of a pass.

    Transformers decides anew in every pass, and so does decoding here: where a generation grows
    over the original length, new tokens get the long factors and the cache keeps its old keys.
    (`generate` of Phi3 alone then reads the whole text anew; an evicted cache cannot be.)
    """
    return [module for module in model.modules() if "longrope" in _rope_types(module)]


@contextmanager
def read_as_whole(model: nn.Module, length: int) -> Iterator[None]:
    """Passes inside pick their factors as one pass over all positions below `length` would."""

    def with_last_position(_module: nn.Module, args: Any, kwargs: Any) -> _Arguments:
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": _extended(kwargs["position_ids"], length - 1)}
        states, positions, *others = args
        return (states, _extended(positions, length - 1), *others), kwargs

    def without_last(
        _module: nn.Module, _args: object, cos_sin: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        return tuple(part[:, :-1] for part in cos_sin)  # each [rows, tokens, dim]

    with ExitStack() as hooks:
        for module in length_dependent(model):
            pre_hook = module.register_forward_pre_hook(with_last_position, with_kwargs=True)
            hooks.enter_context(pre_hook)
            hooks.enter_context(module.register_forward_hook(without_last))
        yield


def _rope_types(module: nn.Module) -> tuple[object, ...]:
    """Of a rotary embedding, the one of all layers or that of each kind of layer."""
    found = getattr(module, "rope_type", None)
    return tuple(found.values()) if isinstance(found, dict) else (found,)


def _extended(positions: Tensor, last: int) -> Tensor:
    """[rows, tokens] positions with one more."""
    return torch.cat([positions, torch.full_like(positions[:, :1], last)], dim=1)
