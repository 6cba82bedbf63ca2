"""Says what the engine cannot do with a model, by name, before its weights are read."""

from collections.abc import Iterator

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ckv_core.errors import ModelError
from ckv_core.models.attention import ATTENTION_NAME
from ckv_core.models.geometry import read_geometry

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def check_config(config: PreTrainedConfig, name: str) -> int:
    """Refuse a model by its config alone, with every reason that the config shows: ModelError.

    The model is also built without weights (on the meta device), so that its modules are
    checked before gigabytes are downloaded.

    Returns:
        How many numbers its weights are; tied ones counted once.
    """
    reasons = list(_reasons(config))
    if reasons:
        raise ModelError(
            f"{name!r} ({config.model_type}) cannot be used: {'; '.join(reasons)}. Choose a model "
            "such as Llama, Mistral, Qwen2, Qwen3, Phi3 or Gemma3."
        )
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=False, attn_implementation=ATTENTION_NAME
        )
    if not skeleton._supports_attention_backend:
        raise ModelError(
            f"{type(skeleton).__name__} computes attention itself instead of calling the attention "
            f"function of transformers, so {name!r} cannot be captured; choose another model."
        )
    read_geometry(skeleton, name)
    return int(skeleton.num_parameters())


def _reasons(config: PreTrainedConfig) -> Iterator[str]:
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        yield "it is an encoder-decoder model"
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        yield "it is not a text-generation model that transformers has built in"
    if getattr(config, "quantization_config", None) is not None:
        yield "its weights are quantised, so the value norms cannot be read from o_proj"
    if getattr(text, "kv_lora_rank", None) is not None:
        yield (
            "it caches one latent for all heads (multi-head latent attention), not keys and "
            "values per KV head"
        )
    if getattr(text, "attn_logit_softcapping", None) is not None:
        yield "its attention caps the logits (softcap), which the engine does not implement"
    if getattr(text, "num_kv_shared_layers", 0):
        yield "some of its layers share the keys and values of others"
    if getattr(text, "use_bidirectional_attention", False):
        yield "its attention looks ahead (bidirectional)"
    unknown = sorted(set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES)
    if unknown:
        yield (
            f"it has layers of type {', '.join(unknown)}, which are neither full nor sliding "
            "attention and keep no plain KV cache per head"
        )
