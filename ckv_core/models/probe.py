"""Runs two tokens through a model and checks that its attention is what the engine computes."""

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ckv_core.errors import ModelError
from ckv_core.models.geometry import Geometry

_TOKENS = 2


class _RecordingContext:
    """Answers every layer with a marked output and remembers what was asked and answered."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, torch.Size, torch.Size, torch.Size]] = []
        self.outputs: list[Tensor] = []

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """Return a ramp: no gate, norm or permutation after it would leave it as it is."""
        self.shapes.append((layer, query.shape, key.shape, value.shape))
        ramp = torch.linspace(-scaling, scaling, query.numel(), device=query.device)
        self.outputs.append(ramp.reshape(query.shape).to(query.dtype))
        return self.outputs[-1]


def probe(model: PreTrainedModel, geometry: Geometry, name: str) -> None:
    """Check by running it what the modules' names and sizes cannot show: ModelError.

    Every layer must call our attention function once, in order, with heads of the expected
    number and size, and hand its output to `o_proj` as it is.
    """
    context = _RecordingContext()
    projected: list[Tensor] = []

    def record(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        projected.append(inputs[0])

    device = next(model.get_input_embeddings().parameters()).device
    ids = torch.arange(_TOKENS, device=device)[None]
    try:
        with ExitStack() as hooks, torch.no_grad():
            for attention in geometry.attentions:
                projection = attention.get_submodule("o_proj")
                hooks.enter_context(projection.register_forward_pre_hook(record))
            model(input_ids=ids, use_cache=False, ckv_context=context)
    except ModelError as error:
        raise ModelError(
            f"The attention of {name!r} ({type(model).__name__}) cannot be handed to the engine: "
            f"{error}"
        ) from error
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise ModelError(
            f"{name!r} ({type(model).__name__}) cannot be run with the engine's attention "
            f"({type(error).__name__}: {error}); choose another model."
        ) from error
    query = torch.Size((1, geometry.query_heads, _TOKENS, geometry.head_dim))
    entry = torch.Size((1, geometry.kv_heads, _TOKENS, geometry.head_dim))
    expected = [(layer, query, entry, entry) for layer in range(len(geometry.layers))]
    if context.shapes != expected:
        raise ModelError(
            f"The layers of {name!r} do not each call attention once with {geometry.query_heads} "
            f"query heads and {geometry.kv_heads} KV heads of size {geometry.head_dim}; choose "
            "another model."
        )
    pairs = zip(context.outputs, projected, strict=True)
    if not all(torch.equal(out.transpose(1, 2).flatten(2), into) for out, into in pairs):
        raise ModelError(
            f"{name!r} changes the attention output before o_proj (a gate or norm), which this "
            "engine does not implement; choose another model."
        )
