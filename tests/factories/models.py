"""Tiny random models of every supported architecture, and their tokenizer, built in code."""

from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OlmoeConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SmolLM3Config,
)

from ckv_core.methods import METHODS
from ckv_core.models.attention import ATTENTION_NAME
from ckv_core.models.checkpoint import find_checkpoint
from ckv_core.models.loaded import LoadedModel, wrap_model
from ckv_core.models.loading import kept_conversion, read_tokenizer
from ckv_core.models.steps import silent

Found = TypeVar("Found")
EXPERTS = ("qwen3_moe", "mixtral", "olmoe")
# Gemma 2 caps its logits; gpt-oss has a learnt sink in every head.
# Linear attention in every other layer, the first one too; the others gate what their heads give.
HYBRID = ("qwen3_next", "qwen3_5")
ARCHITECTURES = (
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma3", *EXPERTS, "gemma2", "gpt_oss"),
)
SLIDING = ("gemma3", "gemma2", "gpt_oss")  # in every other layer, the first one too
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
CONTEXT_LIMIT = 2048
LONGROPE_ORIGINAL = 1024  # tokens; a longer text is read with the long factors
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SLIDING_WINDOW = 16
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def tiny_model(arch: str, **changes: object) -> LoadedModel:
    """The same random weights at every call; shared by the whole session, so never change it."""
    with torch.inference_mode(mode=False):  # whoever is the first: gradients go through it
        model = _build(arch, ATTENTION_NAME, **changes)
        return wrap_model(model, tiny_tokenizer(), name=f"tiny-{arch}", sha256="0" * 64)


def tiny_model_on(
    arch: str, place: Callable[[PreTrainedModel], PreTrainedModel], **changes: object
) -> LoadedModel:
    """The weights of `tiny_model(arch)` where `place` puts them."""
    model = place(_build(arch, ATTENTION_NAME, **changes))
    return wrap_model(model, tiny_tokenizer(), name=f"tiny-{arch}", sha256="0" * 64)


@cache
def half_model(arch: str) -> LoadedModel:
    """The weights of `tiny_model(arch)` rounded to bfloat16."""
    model = _build(arch, ATTENTION_NAME).to(torch.bfloat16)
    return wrap_model(model, tiny_tokenizer(), name=f"tiny-{arch}", sha256="0" * 64)


@cache
def plain_model(arch: str) -> PreTrainedModel:
    """The weights of `tiny_model(arch)` with transformers' own eager attention: the reference."""
    with torch.inference_mode(mode=False):
        return _build(arch, "eager")


@cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, without merges but one, and a chat template with special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    # One merge, so that a token's text can be longer than one character ("th").
    vocabulary["th"] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s?\w+|\s?[^\w\s]+|\s"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def prompt_ids(length: int, seed: int = 5) -> list[int]:
    """Random tokens, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, len(tiny_tokenizer()), (length,), generator=generator).tolist()


def tiny_config(arch: str, **changes: object) -> PreTrainedConfig:
    """Config of one architecture; `changes` overrides any of its settings."""
    settings: dict[str, object] = {
        "vocab_size": len(tiny_tokenizer()),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT_LIMIT,
        # Large enough for peaked attention: with near-uniform attention every choice looks alike.
        "initializer_range": 0.25,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "tie_word_embeddings": False,
    }
    sliding: dict[str, object] = {
        "head_dim": 16,
        "num_hidden_layers": 4,
        "sliding_window": SLIDING_WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    hybrid: dict[str, object] = {
        "head_dim": 16,
        "num_hidden_layers": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    }
    classes: dict[str, tuple[type[PreTrainedConfig], dict[str, object]]] = {
        "llama": (LlamaConfig, {"head_dim": 16}),
        # As many KV heads as query heads; not of ARCHITECTURES, for it is a size, not a family.
        "mha": (LlamaConfig, {"head_dim": 16, "num_key_value_heads": 4}),
        "mistral": (MistralConfig, {"head_dim": 16, "sliding_window": None}),
        "qwen2": (Qwen2Config, {}),
        # Here the heads together are wider than the residual stream.
        "qwen3": (Qwen3Config, {"head_dim": 16, "hidden_size": 48}),
        "phi3": (Phi3Config, {}),
        # Experts in the first and the last layer.
        "qwen3_moe": (
            Qwen3MoeConfig,
            {
                "head_dim": 16,
                "num_experts": 6,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "mlp_only_layers": [1],
                "norm_topk_prob": True,
            },
        ),
        "mixtral": (MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
        "olmoe": (OlmoeConfig, {"num_experts": 4, "num_experts_per_tok": 2}),
        # Phi3 as it is read over long texts; like "mha" not a family of its own.
        "longrope": (
            Phi3Config,
            {
                "original_max_position_embeddings": LONGROPE_ORIGINAL,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 10000.0,
                    "short_factor": [1.0] * 8,
                    "long_factor": [1.0 + index for index in range(8)],
                    "original_max_position_embeddings": LONGROPE_ORIGINAL,
                },
            },
        ),
        # Only half of a head's numbers are turned by position; and a layer that turns none.
        "partial": (Phi3Config, {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}),
        "nope": (SmolLM3Config, {"no_rope_layers": [1, 0, 1]}),
        # Not head_dim: the scaling of the logits is not always its square root.
        "gemma3": (Gemma3TextConfig, {**sliding, "query_pre_attn_scalar": 24}),
        # Caps so low that they change what is attended to and what is written.
        "gemma2": (
            Gemma2Config,
            {
                **sliding,
                "query_pre_attn_scalar": 24,
                "attn_logit_softcapping": 2.0,
                "final_logit_softcapping": 3.0,
            },
        ),
        # Experts but in the second layer, and one that all tokens go through.
        "qwen3_next": (
            Qwen3NextConfig,
            {
                **hybrid,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 24,
                "mlp_only_layers": [1],
            },
        ),
        "qwen3_5": (Qwen3_5TextConfig, hybrid),
        "gpt_oss": (
            GptOssConfig,
            {
                **sliding,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "truncate": False,
                    "original_max_position_embeddings": CONTEXT_LIMIT // 4,
                },
            },
        ),
    }
    config_class, own = classes[arch]
    return config_class(**(settings | own | changes))


def _build(arch: str, attention: str, **changes: object) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20250204)
        model = AutoModelForCausalLM.from_config(
            tiny_config(arch, **changes), attn_implementation=attention, dtype=torch.float32
        )
    for name, weight in model.named_parameters():
        if name.endswith("sinks"):  # among the highest logits, or they would draw nothing
            weight.data = torch.linspace(6, 10, len(weight))
    return model.eval().requires_grad_(requires_grad=False)


def saved_model(folder: Path, arch: str = "llama", **changes: object) -> str:
    """Where a tiny model and its tokenizer lie as a user would have them."""
    _build(arch, "eager", **changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Without any weights, as counting loads it."""
    return read_tokenizer(kept_conversion(find_checkpoint(name, silent, with_weights=False)))


def drained(work: Generator[Any, Any, Found]) -> Found:
    """What a generator returns in the end."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: Found = done.value
            return found


# --- every registered method; every selector after a '+' on the first whose head budgets differ

_UNEQUAL = [m for m in METHODS if m.budget_rule is not None and m.budget_rule.compares_heads]
_FOLLOWED = {part.name: m.name for m in reversed(_UNEQUAL) for part in m.selectors[1:]}
SPECS = (
    *(method.name for method in METHODS),
    *(f"{method}+{selector}" for selector, method in _FOLLOWED.items()),
)
