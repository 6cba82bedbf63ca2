"""A model that is ready to run: weights, tokenizer, and what the engine knows about them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ckv_core.methods.parts.scaling import Scaling
from ckv_core.models.attention import ATTENTION_NAME
from ckv_core.models.fused import fuse, pack_linear_maps
from ckv_core.models.geometry import attention_module, probe, read_geometry
from ckv_core.models.linear import LinearState, check_states, hand_states
from ckv_core.records.records import ModelInfo


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """One model in memory; in eval mode, without gradients, attention handed to the context."""

    model: PreTrainedModel  # call it as `model(..., use_cache=False, ckv_context=context)`
    tokenizer: PreTrainedTokenizerBase
    info: ModelInfo
    layers: tuple[nn.Module, ...]  # decoder blocks, in order; their output is the residual stream
    # By layer, the attention module of each block that has one, with a linear `o_proj` whose
    # `weight` can be read. The other blocks have linear attention.
    attentions: Mapping[int, nn.Module]
    # By layer, a row's state of each block with linear attention, on the meta device: its sizes.
    linears: Mapping[int, LinearState]
    gated: bool  # whether a token gates what its heads give before o_proj
    # [layers] window in tokens; None = evictable, 0 = linear attention. The only truth: a window
    # that reaches the context limit counts as none.
    sliding_windows: tuple[int | None, ...]
    eos_token_ids: frozenset[int]  # tokens that end a generation
    # Numbers in the weights; what embedding and head share counts once, though packing gives the
    # head a copy.
    parameters: int
    scalings: tuple[Scaling, ...]  # of each layer with attention
    linear: int  # numbers that the linear maps of one block, the widest, write of a token

    @property
    def device(self) -> torch.device:
        """Where token ids go in."""
        return next(self.model.get_input_embeddings().parameters()).device

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices that hold weights."""
        return tuple(dict.fromkeys(part.device for part in self.model.parameters()))


def wrap_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, name: str, sha256: str
) -> LoadedModel:
    """Hand a model's attention to our function, check it by a run and describe it.

    The model is changed in place: eval mode, no gradients, our attention function, fused and
    packed parts. ModelError where it has something that the engine does not implement.
    """
    geometry = read_geometry(model, name)
    model.set_attn_implementation(ATTENTION_NAME)
    model.train(mode=False).requires_grad_(requires_grad=False)
    hand_states(geometry.linears.values())
    hidden = next(model.get_input_embeddings().parameters()).shape[1]
    linears = check_states(geometry.linears, hidden, name)
    scalings, gated = probe(model, geometry, name)
    parameters = model.num_parameters()
    fuse(model, geometry.attentions.values())
    pack_linear_maps(model)
    info = ModelInfo(
        name=name,
        sha256=sha256,
        layers=len(geometry.layers),
        query_heads=geometry.query_heads,
        kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        dtype=str(model.dtype).removeprefix("torch."),
        device=model.device.type,
        evictable_layers=geometry.evictable_layers,
        context_limit=geometry.context_limit,
    )
    attentions = {i: attention_module(geometry.layers[i], i, name) for i in geometry.attentions}
    ids: set[int] = set()  # generation config and tokenizer may each name other end tokens
    generation = getattr(model, "generation_config", None)
    for value in (getattr(generation, "eos_token_id", None), tokenizer.eos_token_id):
        ids.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        info=info,
        layers=geometry.layers,
        attentions=attentions,
        linears=linears,
        gated=gated,
        sliding_windows=geometry.sliding_windows,
        eos_token_ids=frozenset(ids),
        parameters=parameters,
        scalings=scalings,
        linear=max(_linear(layer, model.config) for layer in geometry.layers),
    )


def _linear(layer: nn.Module, config: PreTrainedConfig) -> int:
    """Upper bound: the maps of experts may lie either way round."""
    active = getattr(config.get_text_config(decoder=True), "num_experts_per_tok", None) or 1
    experts = [each.shape for each in layer.parameters() if each.dim() == 3]
    own = sum(getattr(part, "out_features", 0) for part in layer.modules())
    return int(own + active * sum(max(shape[1:]) for shape in experts))
