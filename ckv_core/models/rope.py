"""RoPE by the model's own modules: to turn, undo, average and move, and where it needs the length.

Of longrope the factors depend on the length read: a text read in pieces is as if whole.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn

from ckv_core.errors import ModelError
from ckv_core.models.fused import Recorder
from ckv_core.models.loaded import LoadedModel

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def length_dependent(model: nn.Module) -> list[nn.Module]:
    """The model's modules that pick short or long factors by the last position of a pass.

    Transformers decides again in every pass, and so does decoding here: where a generation grows
    over the original length, new tokens get the long factors and the cache keeps its old keys.
    (`generate` of Phi3 alone then reads the whole text again; an evicted cache cannot be.)
    """
    return [
        module for module in model.modules() if "longrope" in str(getattr(module, "rope_type", ""))
    ]


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


def _extended(positions: Tensor, last: int) -> Tensor:
    """[rows, tokens] positions with one more."""
    return torch.cat([positions, torch.full_like(positions[:, :1], last)], dim=1)


_FROM, _TOKENS = 3, 2  # positions that the check reads
_CLOSE = 0.02  # of the largest number, which is what half precision rounds


class LayerRotary:
    """See `methods.parts.views.Rotary`; checked against what the layer does with two tokens.

    Rotation is linear in the cosines and sines, so the model's own function, given their means,
    makes the mean of all rotations; given negative sines, it turns back.

    Raises:
        ModelError: the layer turns its queries in a way that this class does not know.
    """

    def __init__(self, loaded: LoadedModel, layer: int) -> None:
        decoder, attention = loaded.model.get_decoder(), loaded.attentions[layer]  # type: ignore[no-untyped-call]
        self._embedding = getattr(decoder, "rotary_emb", None)
        self._apply = getattr(sys.modules[type(decoder).__module__], "apply_rotary_pos_emb", None)
        kinds = getattr(loaded.model.config.get_text_config(decoder=True), "layer_types", None)
        self._kind = kinds[layer] if kinds else None
        if self._embedding is None or self._apply is None or not self._is_as_in(attention):
            raise ModelError(
                f"How layer {layer} of {loaded.info.name!r} turns its queries by position (RoPE) "
                "is not known, so nothing can be turned to other positions; choose another method."
            )

    def turn(self, states: Tensor, start: int) -> Tensor:
        return self._turned(states, *self._from(states, start, states.shape[1]))

    def undo(self, states: Tensor, start: int) -> Tensor:
        cos, sin = self._from(states, start, states.shape[1])
        scale = cos**2 + sin**2  # 1 but where the embedding scales (YaRN)
        return self._turned(states, cos / scale, -sin / scale)

    def mean_turn(self, states: Tensor, start: int, tokens: int) -> Tensor:
        angles = self._from(states, start, tokens)
        cos, sin = (part.mean(1, keepdim=True) for part in angles)
        return self._turned(states, cos, sin)

    def move(self, states: Tensor, by: Tensor) -> Tensor:
        """States after RoPE as they were at positions later by [heads, tokens] int64: float32."""
        cos, sin = self._angles(states, by)
        scale = (cos**2 + sin**2).sqrt()
        return self._turned(states[:, None], cos / scale, sin / scale)[:, 0]

    def _from(self, states: Tensor, start: int, tokens: int) -> tuple[Tensor, Tensor]:
        return self._angles(states, torch.arange(start, start + tokens, device=states.device)[None])

    def _angles(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines at [rows, tokens] positions, [rows, tokens, rotary_dim] float32."""
        embedding = cast(nn.Module, self._embedding)
        by_kind = "layer_type" in signature(embedding.forward).parameters
        kind = (self._kind,) if by_kind else ()
        cos, sin = embedding(states[:1].float(), positions, *kind)
        # The embedding may lie on another device than the layer.
        return cos.to(states.device), sin.to(states.device)

    def _turned(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[heads, tokens, head_dim] by one row of angles, or [rows, heads, ...] by one each."""
        batch = states.float().reshape(len(cos), -1, *states.shape[-2:])
        apply = cast("Callable[..., tuple[Tensor, Tensor]]", self._apply)
        return apply(batch, batch, cos, sin)[0].view(states.shape)

    def _is_as_in(self, attention: nn.Module) -> bool:
        """Whether the layer's queries, without RoPE and turned here, are its queries with it."""
        weight, generator = next(attention.parameters()), torch.Generator().manual_seed(0)
        projection = cast(nn.Linear, getattr(attention, "q_proj", None) or attention.qkv_proj)
        states = torch.randn(1, _TOKENS, projection.in_features, generator=generator).to(weight)
        angles = self._from(states.float(), _FROM, _TOKENS)
        plain = torch.ones_like(angles[0]), torch.zeros_like(angles[1])
        queries = []
        for cos, sin in (plain, angles):
            context = Recorder()
            attention(
                hidden_states=states,
                position_embeddings=(cos.to(weight), sin.to(weight)),
                attention_mask=None,
                ckv_context=context,
            )
            ((_, (query, *_)),) = context.given
            queries.append(query[0].float())
        without, expected = queries
        error = (self.turn(without, _FROM) - expected).abs().amax()
        return bool(error <= _CLOSE * expected.abs().amax())


def movers(loaded: LoadedModel, layers: Iterable[int]) -> dict[int, LayerRotary]:
    """RoPE by layer, to move keys in; ModelError where that is not exact."""
    if length_dependent(loaded.model):
        raise ModelError(
            f"RoPE of {loaded.info.name!r} depends on the length of the text (longrope), so keys "
            "cannot be moved in it; leave out positions=cache."
        )
    return {layer: LayerRotary(loaded, layer) for layer in layers}
