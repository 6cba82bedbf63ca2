"""What the engine cannot serve is refused by name; what it can is let through."""

import pytest
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from ckv_core.errors import ModelError
from ckv_core.models.geometry import check_config, read_geometry
from ckv_core.models.loaded import wrap_model
from tests.factories.models import ARCHITECTURES, tiny_config, tiny_model, tiny_tokenizer

SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _config(name: str, **changes: object) -> PreTrainedConfig:
    return getattr(transformers, f"{name}Config")(**(SMALL | changes))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: _config("Gemma2"), "softcap"),
        (lambda: _config("GptOss"), "has sinks"),
        (lambda: _config("DeepseekV3"), "latent"),
        (lambda: transformers.MambaConfig(num_hidden_layers=2), "linear_attention"),
        (lambda: _config("Qwen3Next"), "linear_attention"),
        (lambda: _config("Lfm2"), "no KV cache per head"),
        (lambda: _config("Gemma3nText"), "share the keys and values"),
        (lambda: _config("BitNet"), "attn_sub_norm"),
        (lambda: _config("StableLm"), "computes attention itself"),
        (lambda: transformers.GPT2Config(n_layer=2), "no list of decoder layers"),
        (lambda: transformers.T5Config(num_layers=2), "encoder-decoder"),
        (transformers.ViTConfig, "not a text-generation model"),
        (lambda: _config("Mistral", sliding_window=32), "nothing to evict"),
        (lambda: tiny_config("phi3", sliding_window=2047), "nothing to evict"),
        (
            lambda: tiny_config("gemma3", layer_types=["sliding_attention"] * 4),
            "nothing to evict",
        ),
        (lambda: tiny_config("gemma3", use_bidirectional_attention=True), "bidirectional"),
        (
            lambda: tiny_config("llama", quantization_config={"quant_method": "gptq"}),
            "quantised",
        ),
        (lambda: tiny_config("llama", max_position_embeddings=0), "max_position_embeddings"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(config, words):
    with pytest.raises(ModelError, match=words) as caught:
        check_config(config(), "org/some-model")
    assert "'org/some-model'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_window_as_long_as_the_context_limit_hides_nothing_so_the_layer_is_evictable():
    config = tiny_config("phi3", sliding_window=2048, max_position_embeddings=2048)
    model = AutoModelForCausalLM.from_config(config)
    assert read_geometry(model, "phi3").evictable_layers == (0, 1, 2)


def test_only_the_layers_that_slide_are_left_out():
    config = tiny_config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    geometry = read_geometry(AutoModelForCausalLM.from_config(config), "qwen2")
    assert geometry.sliding_windows == (None, 8, 8)
    assert geometry.evictable_layers == (0,)


class _OtherLinear(nn.Linear):
    """As quantisation libraries do: a Linear whose weight is not the matrix."""


def test_a_projection_that_only_looks_like_a_linear_layer_is_refused():
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    model.model.layers[1].self_attn.o_proj = _OtherLinear(64, 64, bias=False)
    with pytest.raises(ModelError, match=r"layer 1 .* is a _OtherLinear"):
        read_geometry(model, "llama")


def test_a_layer_with_other_heads_than_the_config_says_is_refused():
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    model.model.layers[2].self_attn.k_proj = nn.Linear(64, 16, bias=False)
    with pytest.raises(ModelError, match=r"k_proj\.out_features in layer 2 .* is 16, not 32"):
        read_geometry(model, "llama")


def test_a_gate_between_attention_and_projection_is_found_by_running_the_model():
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    projection = model.model.layers[1].self_attn.o_proj
    projection.register_forward_pre_hook(lambda _module, inputs: (inputs[0] * 0.5,))
    with pytest.raises(ModelError, match="before o_proj"):
        wrap_model(model, tiny_tokenizer(), name="llama", sha256="")


def test_a_model_that_keeps_our_context_from_its_attention_is_refused():
    model = AutoModelForCausalLM.from_config(_config("Nemotron"))
    with pytest.raises(ModelError, match="cannot be handed to the engine"):
        wrap_model(model, tiny_tokenizer(), name="nemotron", sha256="")


def test_all_end_tokens_of_generation_config_and_tokenizer_count():
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    model.generation_config.eos_token_id = [7, 9]
    loaded = wrap_model(model, tiny_tokenizer(), name="llama", sha256="")
    assert loaded.eos_token_ids == {7, 9, tiny_tokenizer().eos_token_id}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_supported_architecture_passes_and_its_geometry_is_the_configs(arch):
    check_config(tiny_config(arch), arch)
    info = tiny_model(arch).info
    assert (info.query_heads, info.kv_heads, info.head_dim) == (4, 2, 16)
    assert info.context_limit == 2048
    assert info.dtype == "float32"
    assert info.device == "cpu"
    expected = (1, 3) if arch == "gemma3" else tuple(range(info.layers))
    assert info.evictable_layers == expected
