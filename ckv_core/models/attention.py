"""The one attention function that models call; it hands q, k, v to the run's context.

Registered under our own name in transformers, so no architecture needs code of its own:
the function sees queries after q_norm and RoPE, and the true scaling, cap and sink.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ckv_core.errors import ModelError
from ckv_core.methods.parts.scaling import Scaling

ATTENTION_NAME = "critical_kv"

# Keywords that carry no arithmetic for a context that owns positions and causality itself.
# A sliding window is known per layer from loading, and the context was built with it.
_IGNORED = frozenset(
    {"position_ids", "cache_position", "use_cache", "is_causal", "dropout", "sliding_window"}
)


class AttentionContext(Protocol):
    """A forward pass hands it the queries, keys and values of each layer."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling
    ) -> Tensor:
        """Attention output of the new tokens.

        Args:
            layer: index of the decoder layer.
            query: [rows, query_heads, new_tokens, head_dim], after RoPE.
            key: [rows, kv_heads, new_tokens, head_dim], after RoPE.
            value: [rows, kv_heads, new_tokens, value_dim].
            scaling: of the layer.

        Returns:
            [rows, query_heads, new_tokens, value_dim].
        """


def context_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    ckv_context: AttentionContext | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Hand one layer's attention to the context given as `model(..., ckv_context=...)`.

    Transformers calls it with the layer's module, query, key, value and mask, and keywords.

    Raises:
        ModelError: called without a context, or the model asks for something not implemented.
    """
    if ckv_context is None:
        raise ModelError("This model is set up for the eviction engine; run it through that.")
    scaling, cap = keywords.pop("scaling", None), keywords.pop("softcap", None)
    sink = keywords.pop("s_aux", None)
    for name, setting in keywords.items():
        if name not in _IGNORED and setting is not None and setting is not False:
            raise ModelError(
                f"{type(module).__name__} passes {name!r} to its attention, which this engine "
                "does not implement; choose another model."
            )
    if attention_mask is not None:
        raise ModelError(
            f"{type(module).__name__} passes its own attention mask; choose another model."
        )
    factor = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    own = Scaling(factor, cap, sink)
    output = ckv_context.attend(cast(int, module.layer_idx), query, key, value, own)
    return output.transpose(1, 2).contiguous(), None


# Arguments and keywords of a module.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@contextmanager
def calls_shown(modules: Iterable[nn.Module]) -> Iterator[list[Call]]:
    """Inside, the list grows by what each module is called with."""
    shown: list[Call] = []

    def hook(_module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        shown.append((args, keywords))

    with ExitStack() as hooks:
        for each in modules:
            hooks.enter_context(each.register_forward_pre_hook(hook, with_kwargs=True))
        yield shown


class _Ones:
    """Answers every query with ones, so that what a layer makes of them is its gate."""

    def attend(
        self, _layer: int, query: Tensor, _key: Tensor, value: Tensor, _scaling: Scaling
    ) -> Tensor:
        return torch.ones_like(query[..., : value.shape[3]])


def gate_of(attention: nn.Module, call: Call) -> Tensor:
    """The gate that a layer multiplies its heads' outputs by before o_proj; ones without a gate.

    `call` is how the pass called it; [rows, tokens, query_heads * value_dim].
    """
    found: list[Tensor] = []

    def record(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0])

    args, keywords = call
    with attention.get_submodule("o_proj").register_forward_pre_hook(record):
        attention(*args, **(keywords | {"ckv_context": _Ones()}))
    return found[0]


@contextmanager
def inputs_shown(attentions: Iterable[nn.Module], show: Callable[[Tensor], None]) -> Iterator[None]:
    """Inside, `show` gets the hidden states [rows, tokens, hidden_size] given to each module."""

    def hook(_module: nn.Module, args: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> None:
        show(args[0] if args else keywords["hidden_states"])

    with ExitStack() as hooks:
        for each in attentions:
            hooks.enter_context(each.register_forward_pre_hook(hook, with_kwargs=True))
        yield


# No mask function goes with it: under a name without one transformers builds no mask at all. With
# one, even one that returns nothing, it first looks for packed sequences, and waits for the device.
AttentionInterface.register(ATTENTION_NAME, context_attention)
