"""Linear-attention layers: each carries one state from pass to pass, which is handed in and out.

A state is as large after a million tokens as after one. Nothing of it can be evicted, and nothing
goes back: to read on from an earlier place, a reader needs the state of that place.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ckv_core.errors import ModelError


class LinearState(NamedTuple):
    """The state of a layer after all tokens so far, of one or more rows; never changed in place."""

    conv: Tensor  # [rows, channels, kernel], the last inputs of its convolution
    recurrent: Tensor  # [rows, heads, key_dim, value_dim]

    @property
    def nbytes(self) -> int:
        return self.conv.nbytes + self.recurrent.nbytes

    def rows(self, index: Tensor | list[int]) -> "LinearState":
        return LinearState(self.conv[index], self.recurrent[index])

    def repeated(self, rows: int) -> "LinearState":
        """So many rows alike, of a state of one; nothing is copied."""
        return LinearState(*(each.expand(rows, *each.shape[1:]) for each in self))


def joined_rows(states: Sequence[LinearState], places: Sequence[Tensor]) -> LinearState:
    """Returns one state of all rows; those of each come to its places."""
    order = torch.cat([*places]).argsort()
    return LinearState(*(torch.cat(each)[order] for each in zip(*states, strict=True)))


class StateContext(Protocol):
    """A forward pass asks it for the state of each linear layer, and hands it the next one."""

    def state(self, layer: int) -> LinearState | None:
        """The state before the pass, a row for each row of the pass; None before any token."""

    def take_state(self, layer: int, state: LinearState) -> None:
        """The state after the pass."""


class _Handed:
    """The cache that a linear layer of transformers is given in one pass."""

    def __init__(self, context: StateContext) -> None:
        self._context = context
        self._state: LinearState | None = None
        self._conv = torch.empty(0)

    def get_conv_state(self, layer: int, state_idx: int = 0) -> Tensor | None:
        """Returns a copy, which a step of one token writes over."""
        if state_idx:
            raise ModelError("Its linear-attention layers have several states each.")
        self._state = self._context.state(layer)
        if self._state is None:
            return None
        self._conv = self._state.conv.clone()
        return self._conv

    def get_recurrent_state(self, _layer: int, **_others: object) -> Tensor | None:
        if self._state is None:
            return None
        # What autograd may save must not have been made in inference mode.
        recurrent = self._state.recurrent
        return recurrent.clone() if torch.is_grad_enabled() else recurrent

    def is_recording_past(self, _layer: int) -> bool:
        return False

    def update_conv_state(
        self, inputs: Tensor, _layer: int, *, conv_kernel_size: int, **_others: object
    ) -> Tensor:
        """[rows, channels, tokens] behind what the convolution has seen last."""
        if self._state is None:
            padding = max(0, conv_kernel_size - inputs.shape[2])
            inputs = nn.functional.pad(inputs, (padding, 0))
        else:
            inputs = torch.cat([self._conv, inputs], 2)
        self._conv = inputs[:, :, -conv_kernel_size:].detach().clone()
        return inputs

    def update_recurrent_state(self, recurrent: Tensor, layer: int, **_others: object) -> Tensor:
        self._context.take_state(layer, LinearState(self._conv, recurrent.detach()))
        return recurrent


def takes_state(module: nn.Module) -> bool:
    """Whether a module carries a state from pass to pass: of linear attention or a state space."""
    named = inspect.signature(module.forward).parameters
    return hasattr(module, "layer_idx") and "cache_params" in named


def is_linear(module: nn.Module) -> bool:
    return takes_state(module) and hasattr(module, "num_v_heads")


def hand_states(linears: Iterable[nn.Module]) -> None:
    """Have each linear layer ask the pass's own context for its state."""

    def hand(
        _module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, keywords | {"cache_params": _Handed(keywords["ckv_context"])}

    for each in linears:
        each.register_forward_pre_hook(hand, with_kwargs=True)


class Carried:
    """The states of one text that is read in pieces."""

    def __init__(self) -> None:
        self.states: dict[int, LinearState] = {}

    def state(self, layer: int) -> LinearState | None:
        return self.states.get(layer)

    def take_state(self, layer: int, state: LinearState) -> None:
        self.states[layer] = state


_PIECES = [70, 3, 1, 1]  # tokens: more than a chunk of the delta rule, a few, and single ones
_CLOSE = 0.04  # of the largest number; half precision rounds less


def check_states(
    linears: Mapping[int, nn.Module], hidden: int, name: str
) -> dict[int, LinearState]:
    """One row's state of each linear layer, without numbers; ModelError where it is not carried.

    Whether a layer carries all that it needs is tried: a text in pieces is to be as in one.
    """
    found = {}
    for layer, module in linears.items():
        weight = next(each for each in module.parameters() if each.dim() == 2)
        generator = torch.Generator().manual_seed(layer)
        states = torch.randn(1, sum(_PIECES), hidden, generator=generator).to(weight)
        carried = Carried()
        try:
            whole = module(hidden_states=states, ckv_context=Carried())
            pieces = [
                module(hidden_states=piece, ckv_context=carried)
                for piece in torch.split(states, _PIECES, 1)
            ]
            apart = (torch.cat(pieces, 1) - whole).abs().amax()
        except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:
            raise ModelError(
                f"Layer {layer} of {name!r} ({type(module).__name__}) cannot be handed its state "
                f"({type(error).__name__}: {error}); choose another model."
            ) from error
        if layer not in carried.states or apart > _CLOSE * whole.abs().amax():
            raise ModelError(
                f"Layer {layer} of {name!r} ({type(module).__name__}) carries more from token to "
                "token than this engine knows of; choose another model."
            )
        found[layer] = LinearState(*(each.to("meta") for each in carried.states[layer]))
    return found
