"""Fused parts do what those do that they replace; what computes something else is left alone."""

from collections import Counter
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ckv_core.models.attention import ATTENTION_NAME
from ckv_core.models.fused import FusedAttention, FusedMlp, fuse
from ckv_core.models.geometry import read_geometry
from tests.factories.models import ARCHITECTURES, plain_model


class Causal:
    """Attention in the simplest way."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )


def model_of(arch: str) -> PreTrainedModel:
    model = deepcopy(plain_model(arch))
    with torch.no_grad():
        for name, weight in model.named_parameters():  # or a forgotten weight would not show
            if "norm" in name:
                weight.copy_(torch.linspace(0.5, 1.5, len(weight)))
    model.set_attn_implementation(ATTENTION_NAME)
    return model


def fused(model: PreTrainedModel) -> Counter[type[nn.Module]]:
    fuse(model, read_geometry(model, "tiny").attentions)
    return Counter(type(part) for part in model.modules())


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "mha"])
@torch.inference_mode()
def test_a_fused_model_gives_the_same_logits(arch):
    model = model_of(arch)
    ids = torch.arange(80).view(2, 40)
    before = model(input_ids=ids, use_cache=False, ckv_context=Causal()).logits
    parameters = model.num_parameters()
    kinds = fused(model)
    after = model(input_ids=ids, use_cache=False, ckv_context=Causal()).logits
    # A wider product may be added up in another order; on most CPUs every bit is the same.
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-4)
    assert model.num_parameters() == parameters
    layers = model.config.num_hidden_layers
    if arch != "phi3":  # which has such products of its own, with a RoPE for part of a head
        assert kinds[FusedAttention] == kinds[FusedMlp] == layers
    if arch != "gemma3":  # which adds one to the weights of its norms
        assert kinds[nn.RMSNorm] == {"qwen3": 4}.get(arch, 2) * layers + 1


class Adapted(nn.Linear):
    """What an adapter or a quantiser makes of a linear map."""


def adapt(layer: nn.Module) -> None:
    layer.self_attn.q_proj = Adapted(64, 64, bias=False)
    layer.mlp.up_proj = Adapted(64, 96, bias=False)


def elsewhere(layer: nn.Module) -> None:
    layer._hf_hook = layer.self_attn._hf_hook = layer.mlp._hf_hook = object()


@pytest.mark.parametrize(
    ("change", "attentions", "mlps", "norms"),
    [
        (lambda layer: patch(layer.self_attn, lambda states: states.flip(-1)), 2, 3, 7),
        (lambda layer: patch(layer.mlp, lambda states: states * 1.001), 3, 2, 7),
        (lambda layer: patch(layer.input_layernorm, lambda states: states + 0.01), 3, 3, 6),
        (adapt, 2, 2, 7),
        (elsewhere, 2, 2, 7),
    ],
    ids=["attention", "mlp", "norm", "a subclass", "another device"],
)
def test_what_computes_something_else_stays(change, attentions, mlps, norms):
    model = model_of("llama")
    change(model.model.layers[1])
    kinds = fused(model)
    found = (kinds[FusedAttention], kinds[FusedMlp], kinds[nn.RMSNorm])
    assert found == (attentions, mlps, norms)


def patch(part: nn.Module, change) -> None:
    """The part's inputs are changed before it computes."""
    forward = part.forward

    def changed(*args, **kwargs):
        if kwargs:
            kwargs["hidden_states"] = change(kwargs["hidden_states"])
        else:
            args = (change(args[0]),)
        return forward(*args, **kwargs)

    part.forward = changed
