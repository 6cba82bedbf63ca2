"""Shape of a model as the engine needs it, and by name what the engine cannot do with a model."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ckv_core.errors import ModelError
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.models.attention import ATTENTION_NAME, calls_shown, gate_of
from ckv_core.models.fused import Recorder
from ckv_core.models.linear import is_linear, takes_state

# Everything an attention module may hold. Anything else (norms, latent projections)
# does arithmetic that the engine would not know of.
_KNOWN_PARTS = frozenset(
    {"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "sinks"}
    | {"q_norm", "k_norm", "v_norm", "q_layernorm", "k_layernorm"}
)


@dataclass(frozen=True, slots=True)
class Geometry:
    layers: tuple[nn.Module, ...]  # decoder blocks, in order
    # By layer, the attention module of each block that has one, and of each other its linear one.
    attentions: Mapping[int, nn.Module]
    linears: Mapping[int, nn.Module]
    # Tokens that each layer sees; None = all, so methods may evict; 0 = of a linear layer.
    sliding_windows: tuple[int | None, ...]
    # query_heads, kv_heads, head_dim: the same in every layer.
    query_heads: int
    kv_heads: int
    head_dim: int
    context_limit: int  # tokens the model was trained for

    @property
    def evictable_layers(self) -> tuple[int, ...]:
        """Indices of the layers that see the whole prompt."""
        return tuple(i for i, window in enumerate(self.sliding_windows) if window is None)


def read_geometry(model: PreTrainedModel, name: str) -> Geometry:
    """Read the geometry of a causal model, also of one on the meta device.

    Raises:
        ModelError: a layer is not plain softmax attention with keys and values per KV head.
    """
    config = model.config.get_text_config(decoder=True)
    layers = getattr(model.get_decoder(), "layers", None)  # type: ignore[no-untyped-call]
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        raise ModelError(
            f"{name!r} ({type(model).__name__}) has no list of decoder layers that this engine "
            "can read; choose a model such as Llama, Qwen or Phi-3."
        )
    linears = {at: found for at, layer in enumerate(layers) if (found := linear_module(layer))}
    attentions = {
        at: attention_module(layer, at, name)
        for at, layer in enumerate(layers)
        if at not in linears
    }
    if not attentions:
        raise ModelError(
            f"Every layer of {name!r} keeps one state instead of a KV cache, so there is nothing "
            "to evict; choose a model with full-attention layers."
        )
    first = next(iter(attentions.values()))
    query_heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or query_heads)
    head_dim = getattr(first, "head_dim", None)
    if not isinstance(head_dim, int):
        raise ModelError(
            f"{type(first).__name__} of {name!r} does not say its head_dim for its "
            f"{query_heads} query heads; choose another model."
        )
    for index, attention in attentions.items():
        _check_projections(attention, index, (query_heads, kv_heads, head_dim), name)
    limit = context_limit(config)
    if limit is None:
        raise ModelError(
            f"The config of {name!r} gives no max_position_embeddings, so its context limit is "
            "unknown; add it to config.json or choose another model."
        )
    windows = sliding_windows(config, attentions, limit)
    if None not in windows:
        raise ModelError(
            f"No layer of {name!r} sees more than a sliding window of "
            f"{max(each or 0 for each in windows):,} tokens, so there is nothing to evict; choose "
            "a model with full-attention layers."
        )
    heads = query_heads, kv_heads, head_dim
    return Geometry(tuple(layers), attentions, linears, windows, *heads, limit)


def context_limit(config: PreTrainedConfig) -> int | None:
    """Tokens that a model reads as it was made to; None if its config does not say.

    YaRN stretches the positions of the original length by a factor, and many configs leave
    `max_position_embeddings` at the original.
    """
    text = config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return None
    rope = getattr(text, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)  # of each kind of layer, or of all
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings", limit)
    if rope.get("rope_type") == "yarn" and factor and original:
        return max(limit, int(factor * original))
    return limit


def sliding_windows(
    config: PreTrainedConfig, attentions: Mapping[int, nn.Module], context_limit: int
) -> tuple[int | None, ...]:
    """Window of each layer in tokens; None where it sees the whole context, 0 without attention.

    Models say it in one of three ways: an attribute of the attention module, the config's
    `layer_types`, or a config-wide `sliding_window` (Mistral, Phi3) that holds for all layers.
    A window as long as the context limit never hides anything, so it counts as none.
    """
    layer_types = getattr(config, "layer_types", None)
    config_window = getattr(config, "sliding_window", None)
    windows: list[int | None] = [0] * config.num_hidden_layers
    for index, attention in attentions.items():
        window = config_window
        if layer_types is not None and layer_types[index] != "sliding_attention":
            window = None
        window = getattr(attention, "sliding_window", window)
        hides = isinstance(window, int) and window < context_limit
        windows[index] = window if hides else None
    return tuple(windows)


def linear_module(layer: nn.Module) -> nn.Module | None:
    """The linear-attention module of a block without attention over a KV cache; else None."""
    found = [each for each in layer.children() if is_linear(each)]
    has_heads = any(hasattr(each, "o_proj") for each in layer.children())
    return found[0] if len(found) == 1 and not has_heads else None


def attention_module(layer: nn.Module, index: int, name: str) -> nn.Module:
    """The one attention module of a block, with nothing in it that the engine would not see."""
    found = [m for m in layer.children() if hasattr(m, "o_proj") and hasattr(m, "layer_idx")]
    if len(found) != 1 or found[0].layer_idx != index or any(map(takes_state, layer.children())):
        raise ModelError(
            f"Layer {index} of {name!r} ({type(layer).__name__}) has no KV cache per head with an "
            "o_proj after it, so nothing can be evicted there. State-space layers have none; "
            "choose another model."
        )
    attention = found[0]
    parts = {part.partition(".")[0] for part, _ in attention.named_parameters()}
    unknown = sorted(parts - _KNOWN_PARTS)
    if unknown:
        raise ModelError(
            f"{type(attention).__name__} of {name!r} has {', '.join(unknown)}, which this engine "
            "does not implement (only plain query, key, value and output projections); choose "
            "another model."
        )
    return attention


def _check_projections(
    attention: nn.Module, index: int, heads: tuple[int, int, int], name: str
) -> None:
    """Check that o_proj and the key and value projections have the sizes of the config."""
    query_heads, kv_heads, head_dim = heads
    # Subclasses of Linear are quantised or wrapped: their weight is not the matrix.
    if type(attention.o_proj) is not nn.Linear or not attention.o_proj.weight.is_floating_point():
        raise ModelError(
            f"o_proj in layer {index} of {name!r} is a {type(attention.o_proj).__name__}, not a "
            "plain linear layer (quantised weights?); use the unquantised checkpoint."
        )
    wanted = {
        "o_proj.in_features": query_heads * head_dim,
        "k_proj.out_features": kv_heads * head_dim,
        "v_proj.out_features": kv_heads * head_dim,
        "qkv_proj.out_features": (query_heads + 2 * kv_heads) * head_dim,
    }
    for path, size in wanted.items():
        part, _, side = path.partition(".")
        actual = getattr(getattr(attention, part, None), side, size)
        if actual != size:
            raise ModelError(
                f"{path} in layer {index} of {name!r} is {actual}, not {size} as its "
                f"{query_heads} query heads, {kv_heads} KV heads and head size {head_dim} ask for. "
                "Layers of unequal heads are not supported; choose another model."
            )


DEQUANTISED = ("fp8", "mxfp4")  # what transformers turns back into numbers when it reads them
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "linear_attention"})


def check_config(config: PreTrainedConfig, name: str) -> int:
    """Refuse a model by its config alone, with every reason that the config shows: ModelError.

    The model is also built without weights, so that its modules are checked before gigabytes are
    downloaded. Returns how many numbers its weights are; tied ones counted once.
    """
    if reasons := list(_reasons(config)):
        raise ModelError(
            f"{name!r} ({config.model_type}) cannot be used: {'; '.join(reasons)}. Choose a model "
            "such as Llama, Mistral, Qwen3, Qwen3-MoE, Phi3 or Gemma3."
        )
    model = skeleton(config)
    geometry = read_geometry(model, name)
    # Classes of hybrid models do not say whether they call it; whether they do, `probe` sees.
    if not (model._supports_attention_backend or geometry.linears):
        raise ModelError(
            f"{type(model).__name__} computes attention itself instead of calling the attention "
            f"function of transformers, so {name!r} cannot be captured; choose another model."
        )
    return int(model.num_parameters())


def quantization(config: PreTrainedConfig) -> str:
    """What quantised the weights, `fp8` for one; empty where nothing did or it is not named."""
    found = getattr(config, "quantization_config", None)
    return str(found.get("quant_method", "")) if isinstance(found, dict) else ""


def skeleton(config: PreTrainedConfig, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Build a model without numbers, on the meta device."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, trust_remote_code=False, attn_implementation=ATTENTION_NAME
        )
    return model


def _reasons(config: PreTrainedConfig) -> Iterator[str]:
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        yield "it is an encoder-decoder model"
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        yield "it is not a text-generation model that transformers has built in"
    quantised = getattr(config, "quantization_config", None)
    if quantised is not None and quantization(config) not in DEQUANTISED:
        kind = quantization(config).upper() or "a method that it does not name"
        yield (
            f"its weights are packed by {kind}, so W_O cannot be read (of its unquantised, FP8 or "
            "MXFP4 version it can be)"
        )
    if getattr(text, "kv_lora_rank", None) is not None:
        yield (
            "it caches one latent for all heads (multi-head latent attention), not keys and "
            "values per KV head"
        )
    if getattr(text, "num_kv_shared_layers", 0):
        yield "some of its layers share the keys and values of others"
    if getattr(text, "use_bidirectional_attention", False):
        yield "its attention looks ahead (bidirectional)"
    unknown = sorted(set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES)
    if unknown:
        yield (
            f"it has layers of type {', '.join(unknown)}, which are neither full, sliding nor "
            "linear attention and keep no plain KV cache per head"
        )


_TOKENS = 2


def probe(
    model: PreTrainedModel, geometry: Geometry, name: str
) -> tuple[tuple[Scaling, ...], bool]:
    """Check by running it what the modules' names and sizes cannot show: ModelError.

    Returns the scaling of each layer with attention, and whether its output is gated.

    Each such layer must call our attention function once, in order, with heads of the expected
    number and size, and hand its output to `o_proj`: as it is, or times a gate of the token.
    """
    context = Recorder()
    projected: list[Tensor] = []

    def record(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        projected.append(inputs[0])

    device = next(model.get_input_embeddings().parameters()).device
    ids = torch.arange(_TOKENS, device=device)[None]
    try:
        with (
            calls_shown(geometry.attentions.values()) as calls,
            ExitStack() as hooks,
            torch.no_grad(),
        ):
            for attention in geometry.attentions.values():
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
    expected = [(layer, query, entry, entry) for layer in geometry.attentions]
    shapes = [(layer, *(each.shape for each in given[:3])) for layer, given in context.given]
    if shapes != expected:
        raise ModelError(
            f"The layers of {name!r} do not each call attention once with {geometry.query_heads} "
            f"query heads and {geometry.kv_heads} KV heads of size {geometry.head_dim}; choose "
            "another model."
        )
    scalings = tuple(context.scalings)
    attentions = geometry.attentions.values()
    for scaling, attention in zip(scalings, attentions, strict=True):
        if getattr(attention, "sinks", None) is not scaling.sink:
            raise ModelError(
                f"{name!r} uses its attention sinks in a way that this engine does not implement; "
                "choose another model."
            )
    outputs = [each.transpose(1, 2).flatten(2) for each in context.outputs]
    gates = [gate_of(*each) for each in zip(attentions, calls, strict=True)]
    gated = zip(outputs, gates, projected, strict=True)
    if not all(torch.equal(out * gate, into) for out, gate, into in gated):
        raise ModelError(
            f"{name!r} changes the attention output before o_proj in another way than by a gate "
            "(a norm), which this engine does not implement; choose another model."
        )
    return scalings, any(not torch.equal(gate, torch.ones_like(gate)) for gate in gates)
