"""Fused and packed parts do what they replace; what computes something else is left alone."""

import weakref
from collections import Counter
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ckv_core.methods.parts.scaling import Scaling, softmax
from ckv_core.models import fused as packed
from ckv_core.models.attention import ATTENTION_NAME
from ckv_core.models.fused import (
    FusedAttention,
    FusedMlp,
    FusedNorm,
    PackedLinear,
    fuse,
    pack_linear_maps,
)
from ckv_core.models.geometry import read_geometry
from ckv_core.models.loading import load_model
from tests.factories.models import (
    ARCHITECTURES,
    HYBRID,
    plain_model,
    saved_model,
    tiny_model,
    tiny_model_on,
)


class Causal:
    """Attention in the simplest way."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling
    ) -> Tensor:
        if scaling.is_plain:
            return functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scaling.factor, enable_gqa=True
            )
        group = query.shape[1] // key.shape[1]
        logits = scaling.logits_(query @ key.repeat_interleave(group, 1).mT)
        logits += torch.full(logits.shape[-2:], -torch.inf).triu(1)
        sink = None if scaling.sink is None else scaling.sink[:, None]
        return softmax(logits, sink) @ value.repeat_interleave(group, 1)


def model_of(arch: str) -> PreTrainedModel:
    model = deepcopy(plain_model(arch))
    with torch.no_grad():
        for name, weight in model.named_parameters():  # or a forgotten weight would not show
            if "norm" in name:
                weight.copy_(torch.linspace(0.5, 1.5, len(weight)))
    model.set_attn_implementation(ATTENTION_NAME)
    return model


def fused(model: PreTrainedModel) -> Counter[type[nn.Module]]:
    fuse(model, read_geometry(model, "tiny").attentions.values())
    return Counter(type(part) for part in model.modules())


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "mha", "qwen3_next"])
@torch.inference_mode()
def test_a_fused_model_gives_the_same_logits(arch):
    model = model_of(arch)
    ids = torch.arange(80).view(2, 40)
    before = model(input_ids=ids, use_cache=False, ckv_context=Causal()).logits
    parameters = model.num_parameters()
    kinds = fused(model)
    after = model(input_ids=ids, use_cache=False, ckv_context=Causal()).logits
    # A wider product may be added up in another order; on most CPUs every bit is the same. Gated
    # norms of linear layers make more of a rounding.
    atol = 1e-3 if arch in HYBRID else 1e-4
    torch.testing.assert_close(after, before, rtol=1e-5, atol=atol)
    assert model.num_parameters() == parameters
    layers = model.config.num_hidden_layers
    if arch != "phi3":  # which has such products of its own, with a RoPE for part of a head
        # Norms of all heads together stand between products and RoPE; experts are no linear maps.
        # RoPE of gpt-oss is not by halves that are rolled. Hybrid ones gate their heads.
        assert kinds[FusedAttention] == (0 if arch in ("olmoe", "gpt_oss", *HYBRID) else layers)
        # One expert of Qwen3-Next is for all tokens.
        few = {"qwen3_moe": 1, "mixtral": 0, "olmoe": 0, "gpt_oss": 0}
        assert kinds[FusedMlp] == few.get(arch, layers)
    if arch not in ("gemma3", "gemma2", *HYBRID):  # which add one to the weights of their norms
        of_heads = arch in ("qwen3", "qwen3_moe", "olmoe")
        assert kinds[FusedNorm] == (4 if of_heads else 2) * layers + 1


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
    found = (kinds[FusedAttention], kinds[FusedMlp], kinds[FusedNorm])
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


SIZES = st.integers(1, 70)
# Not `_works()`: where it is wrong, nothing would be packed and nothing would fail.
needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN"
)


@given(rows=st.integers(1, 40), inputs=SIZES, outputs=SIZES, has_bias=st.booleans())
def test_a_packed_map_does_what_the_plain_one_does(rows, inputs, outputs, has_bias):
    torch.manual_seed(rows)
    linear = nn.Linear(inputs, outputs, bias=has_bias).requires_grad_(requires_grad=False)
    given_rows = torch.randn(2, rows, inputs)
    exact = given_rows.double() @ linear.weight.double().T
    exact += linear.bias.double() if has_bias else 0
    found = PackedLinear(linear)
    torch.testing.assert_close(found(given_rows).double(), exact, rtol=1e-5, atol=1e-5)
    # The last token alone is what the head of a model is given: not one piece of memory.
    torch.testing.assert_close(
        found(given_rows[:, -1:]).double(), exact[:, -1:], rtol=1e-5, atol=1e-5
    )
    assert torch.equal(found.weight, linear.weight)


@needs_onednn
def test_every_linear_map_of_a_cpu_model_is_packed_and_holds_its_weight_once():
    loaded, plain = tiny_model("llama"), plain_model("llama")
    packed_maps = {
        name: part for name, part in loaded.model.named_modules() if isinstance(part, PackedLinear)
    }
    assert len(packed_maps) == 3 * 4 + 1  # q, k and v are one map, gate and up another
    assert not any(type(part) is nn.Linear for part in loaded.model.modules())
    for part in packed_maps.values():
        assert [p for p, _ in part.named_parameters()] == ["packed"]
    linear = [part for part in plain.modules() if isinstance(part, nn.Linear)]
    held = sum(part.packed.nbytes for part in packed_maps.values())
    assert held == sum(part.weight.nbytes for part in linear)
    for name in ("lm_head", "model.layers.1.self_attn.o_proj"):
        assert torch.equal(packed_maps[name].weight, plain.get_submodule(name).weight)


@needs_onednn
def test_a_weight_is_given_back_before_the_next_one_is_packed(monkeypatch):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    weights = [weakref.ref(part.weight) for part in model]
    alive = []

    def works() -> bool:
        alive.append(sum(weight() is not None for weight in weights))
        return True

    monkeypatch.setattr(packed, "_works", works)
    pack_linear_maps(model)
    assert alive == [6, 5, 4, 3, 2, 1]


@needs_onednn
def test_a_head_that_shares_the_embedding_is_packed_and_the_weights_file_is_let_go(tmp_path):
    loaded = load_model(saved_model(tmp_path / "model", tie_word_embeddings=True), "cpu")
    model = loaded.model
    assert loaded.parameters == sum(part.numel() for part in _weights(tmp_path / "model"))
    assert isinstance(model.lm_head, PackedLinear)
    embedding = model.get_input_embeddings().weight
    assert torch.equal(model.lm_head.weight, embedding)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def _weights(folder: Path) -> list[torch.Tensor]:
    """As the file holds them: what embedding and head share once."""
    return list(load_file(folder / "model.safetensors").values())


@pytest.mark.parametrize("reason", ["half precision", "no operators", "a subclass"])
def test_what_cannot_be_packed_stays_as_it_is(reason, monkeypatch):
    class Adapted(nn.Linear):
        """What an adapter or a quantiser makes of a linear map."""

    linear = nn.Linear(4, 4, dtype=torch.bfloat16 if reason == "half precision" else None)
    model = nn.Sequential(Adapted(4, 4) if reason == "a subclass" else linear)
    if reason == "no operators":
        monkeypatch.setattr(packed, "_works", lambda: False)
    before = model[0]
    pack_linear_maps(model)
    assert model[0] is before


@needs_onednn
def test_a_build_with_onednn_packs():
    assert packed._works()


def test_operators_that_compute_something_else_are_not_used(monkeypatch):
    monkeypatch.setattr(packed, "_product", lambda inputs, weight, bias: inputs @ weight.T)
    assert not packed._works.__wrapped__()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton compiles for a CUDA device")
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_tritons_kernels_compute_what_pytorch_does(arch, monkeypatch):
    assert packed._kernels_of(torch.device("cuda", 0)) is not None
    ids = torch.arange(9, device="cuda").view(3, 3) + 20
    ways = []
    for kernels in (packed._kernels, lambda _states: None):
        monkeypatch.setattr(packed, "_kernels", kernels)
        model = tiny_model_on(arch, partial(PreTrainedModel.to, device="cuda")).model
        kinds = {type(part) for part in model.modules()}
        assert {FusedMlp, FusedNorm} <= kinds
        with torch.inference_mode():
            ways.append(model(ids, use_cache=False, ckv_context=Causal()).logits)
    torch.testing.assert_close(*ways, rtol=1e-4, atol=1e-4)
