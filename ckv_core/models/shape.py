"""Sizes of a model out of its config alone, without weights. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckv_core.base.json_text import JsonBounds
from ckv_core.errors import ConfigError, ModelError
from ckv_core.records.records import ModelInfo

FLOAT = 4  # bytes
SCAN_CHUNK = 64  # tokens that transformers reads at a time in a layer of linear attention
KEPT_QUERIES = 128  # last queries kept in any case, so that a wider window can be scored later
CHUNK = 1024  # tokens per forward pass: bounds activations and lets progress and cancel through
CUDA_CHUNK = 4096  # there a pass of few tokens is launches more than arithmetic
MAX_CONFIG_BYTES = 2**20
_BOUNDS = JsonBounds(containers=4096, values=100_000)
_MOST = {"num_hidden_layers": 2_000, "num_attention_heads": 4_096}
_MAX_SIZE = 2**22
_GROUP = 128  # numbers that share a scale and a zero point, where AWQ or GPTQ names no other


@dataclass(frozen=True, slots=True)
class _Family:
    """How models of one `model_type` differ from Llama; what a config leaves out."""

    qkv_bias: bool = False  # queries, keys and values have a bias, whatever the config says
    head_norms: bool = False  # queries and keys are normalised head by head
    norms: int = 2  # of a block
    tied: bool = False
    head_dim: int | None = None
    slides: bool = False  # whether `sliding_window` alone makes all layers slide
    window: int | None = None
    pattern: int = 0  # every so many-th layer sees everything, the others slide
    experts: str = ""  # what the config calls the number of experts; "" for a model that has none
    expert_size: str = "moe_intermediate_size"  # and the size of one
    expert_bias: bool = False  # of the experts and of what chooses them
    all_heads_normed: bool = False  # queries and keys are normalised, all heads together
    attention_bias: bool = False  # where the config does not say
    sinks: bool = False  # a logit for each head
    hybrid: bool = False  # linear attention in some layers; the others gate what their heads give
    shared_expert: bool = False  # one more expert that all tokens go through


_FAMILIES = {
    "llama": _Family(),
    "mistral": _Family(slides=True, window=4096),
    "qwen2": _Family(qkv_bias=True),
    "qwen3": _Family(head_norms=True, head_dim=128),
    "phi3": _Family(slides=True),
    "gemma3_text": _Family(
        head_norms=True, norms=4, tied=True, head_dim=256, pattern=6, window=4096
    ),
    "qwen3_moe": _Family(head_norms=True, experts="num_experts"),
    "mixtral": _Family(slides=True, experts="num_local_experts", expert_size="intermediate_size"),
    "gemma2": _Family(norms=4, tied=True, head_dim=256, pattern=2, window=4096),
    "gpt_oss": _Family(
        experts="num_local_experts",
        expert_size="intermediate_size",
        expert_bias=True,
        attention_bias=True,
        sinks=True,
        head_dim=64,
        pattern=2,
        window=128,
    ),
    "qwen3_next": _Family(
        head_norms=True,
        head_dim=256,
        hybrid=True,
        experts="num_experts",
        shared_expert=True,
    ),
    "qwen3_5_text": _Family(head_norms=True, head_dim=256, hybrid=True),
    "olmoe": _Family(all_heads_normed=True, experts="num_experts", expert_size="intermediate_size"),
}


@dataclass(frozen=True, slots=True)
class _Linear:
    """One layer of linear attention."""

    key_heads: int
    heads: int  # of values, and of its state
    key: int
    value: int
    kernel: int  # inputs that its convolution keeps

    @classmethod
    def of(cls, size: Callable[..., int]) -> "_Linear":
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        return cls(*(size(f"linear_{name}") for name in (*names, "conv_kernel_dim")))

    @property
    def convolved(self) -> int:
        return 2 * self.key_heads * self.key + self.heads * self.value

    @property
    def outputs(self) -> int:
        """Numbers that its maps write of a token, but for the last one."""
        return self.convolved + self.heads * (self.value + 2)

    def maps(self, hidden: int) -> int:
        return hidden * (self.outputs + self.heads * self.value)

    def numbers(self, hidden: int) -> int:
        """Numbers in its weights: maps, convolution, norm, decays and their bias."""
        return self.maps(hidden) + self.convolved * self.kernel + self.value + 2 * self.heads

    def nbytes(self, itemsize: int) -> int:
        """Bytes of its state: inputs of the convolution, and a float32 matrix for each head."""
        return self.convolved * self.kernel * itemsize + self.heads * self.key * self.value * FLOAT


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model that decide its memory and bandwidth.

    Attributes:
        windows: tokens that each layer sees; None for all, so methods may evict there; 0 where
            the layer has linear attention.
        context: tokens that it was trained for.
        parameters: numbers in the weights; shared ones (tied embeddings) once.
        read: of them those that every decoding step reads, no expert among them: of an embedding
            that is not the head too, a step reads a row.
        routed: numbers of all experts of all layers.
        experts: of a layer; 1 where it has none.
        active: of them, those that a token goes through.
        linear: outputs of all linear maps of a block that a token goes through.
        linears: the sizes of its layers of linear attention; None where it has none.
        maps: of `read`, the numbers of linear maps of blocks, which quantisation packs.
        map_bits, expert_bits: what such a number and one of an expert take with its share of
            scales, where quantisation packs it; None for a number of the dtype.
    """

    name: str
    windows: tuple[int | None, ...]
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    parameters: int
    read: int
    routed: int
    experts: int
    active: int
    linear: int
    linears: "_Linear | None" = None
    maps: int = 0
    map_bits: float | None = None
    expert_bits: float | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any], name: str) -> "ModelShape":
        """Count what a config describes; ModelError where it is incomplete or of another kind."""
        nested = config.get("text_config")
        config = nested if isinstance(nested, dict) else config
        family = _FAMILIES.get(str(config.get("model_type")))
        if family is None:
            raise ModelError(
                f"The config of {name[:100]!r} is of no type that can be planned for "
                f"({', '.join(_FAMILIES)}); give the config.json of one that is."
            )
        map_bits, expert_bits = _packed_bits(config.get("quantization_config"), name)
        size = _sizes_of(config, name)
        layers, hidden, inner = map(size, ("num_hidden_layers", "hidden_size", "intermediate_size"))
        heads, vocabulary = size("num_attention_heads"), size("vocab_size")
        kv_heads = size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ModelError(
                f"The config of {name[:100]!r} has {heads} query heads for {kv_heads} KV heads, "
                "which do not share them evenly; correct it."
            )
        head_dim = size("head_dim", family.head_dim or max(1, hidden // heads))
        context = size("max_position_embeddings")
        queries, keys = heads * head_dim, kv_heads * head_dim
        windows = _windows(config, family, layers, context)
        linears = _Linear.of(size) if 0 in windows else None
        gates = queries if family.hybrid else 0
        maps = hidden * (2 * (queries + keys) + gates)
        own = _beside_maps(config, family, (hidden, heads, head_dim), queries + gates + 2 * keys)
        block = maps + own + (queries + keys if family.all_heads_normed else 0)
        dense = 3 * hidden * inner + (2 * inner + hidden if config.get("mlp_bias") else 0)
        sparse, experts, active, width = _experts(config, family, layers, size, name)
        shared = size("shared_expert_intermediate_size") if family.shared_expert else 0
        own = active * (max(2 * width, hidden) + max(width, hidden)) if sparse else 0
        own += (2 * shared + hidden + 1) * bool(shared)
        through = max(own, 2 * inner + hidden if sparse < layers else 0)
        table, bias = vocabulary * hidden, int(family.expert_bias)
        with_heads = layers - windows.count(0)
        read = with_heads * block + (layers - sparse) * dense + sparse * experts * (hidden + bias)
        read += hidden + table + sparse * hidden * (3 * shared + bool(shared))
        maps = with_heads * maps + 3 * hidden * ((layers - sparse) * inner + sparse * shared)
        outputs = queries + gates + 2 * keys
        if linears is not None:
            read += windows.count(0) * (linears.numbers(hidden) + family.norms * hidden)
            maps += windows.count(0) * linears.maps(hidden)
            outputs = max(outputs, linears.outputs)
        routed = sparse * experts * (3 * hidden * width + bias * (2 * width + hidden))
        tied = config.get("tie_word_embeddings", family.tied)
        return cls(
            name=name,
            windows=windows,
            hidden=hidden,
            query_heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocabulary=vocabulary,
            context=context,
            parameters=read + routed + (0 if tied else table),
            read=read,
            routed=routed,
            experts=experts,
            active=active,
            linear=outputs + hidden + through,
            linears=linears,
            maps=maps,
            map_bits=map_bits,
            expert_bits=expert_bits,
        )

    def weight_bytes(self, itemsize: int) -> int:
        """Bytes of all weights, of which the dtype's numbers take `itemsize` each."""
        tables = (self.parameters - self.read - self.routed) * itemsize
        return tables + self._read_bytes(self.routed, itemsize)

    def bytes_read_by(self, requests: int, itemsize: int) -> int:
        """Bytes that a step of so many requests reads of the weights.

        Of the experts those that some token goes through, on average if each token's are drawn
        evenly and apart from the others'.
        """
        hit = 1 - (1 - self.active / self.experts) ** requests
        return self._read_bytes(round(self.routed * hit), itemsize)

    def _read_bytes(self, routed: int, itemsize: int) -> int:
        map_bits, expert_bits = (
            8 * itemsize if bits is None else bits for bits in (self.map_bits, self.expert_bits)
        )
        packed = round((self.maps * map_bits + routed * expert_bits) / 8)
        return packed + (self.read - self.maps) * itemsize

    @property
    def layers(self) -> int:
        return len(self.windows)

    def carried(self, itemsize: int) -> int:
        """Bytes that all layers of linear attention carry for one request."""
        return 0 if self.linears is None else self.windows.count(0) * self.linears.nbytes(itemsize)

    def info(self, dtype: str) -> ModelInfo:
        """As a run would describe it."""
        return ModelInfo(
            name=self.name,
            sha256="",
            layers=self.layers,
            query_heads=self.query_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
            device="",
            evictable_layers=tuple(at for at, each in enumerate(self.windows) if each is None),
            context_limit=self.context,
        )


def _sizes_of(config: Mapping[str, Any], name: str) -> Callable[..., int]:
    """Reads a size by its key, or its default; ModelError where it can be none."""

    def size(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value, most = default if value is None else value, _MOST.get(key, _MAX_SIZE)
        if type(value) is not int or not 1 <= value <= most:
            raise ModelError(
                f"The config of {name[:100]!r} needs {key} from 1 to {most:,}; correct it."
            )
        return value

    return size


def _beside_maps(
    config: Mapping[str, Any], family: _Family, sizes: tuple[int, int, int], outputs: int
) -> int:
    """Norms, sinks and biases of a block with attention; of hidden, heads, head_dim and outputs."""
    hidden, heads, head_dim = sizes
    found = family.norms * hidden + (2 * head_dim if family.head_norms else 0)
    found += heads if family.sinks else 0
    has_bias = bool(config.get("attention_bias", family.attention_bias))
    return found + (outputs if family.qkv_bias or has_bias else 0) + (hidden if has_bias else 0)


def _experts(
    config: Mapping[str, Any], family: _Family, layers: int, size: Callable[..., int], name: str
) -> tuple[int, int, int, int]:
    """Layers with experts, experts of each, those that a token goes through, and their size."""
    if not family.experts:
        return 0, 1, 1, 0
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    step = step if type(step) is int and step > 0 else 1
    dense = dense if isinstance(dense, list) else []
    sparse = sum(at not in dense and not (at + 1) % step for at in range(layers))
    experts = size(family.experts, config.get("num_local_experts"))
    active = size("num_experts_per_tok")
    if active > experts:
        raise ModelError(
            f"The config of {name[:100]!r} has {active} of {experts} experts for a token; "
            "correct it."
        )
    return sparse, experts, active, size(family.expert_size)


def _packed_bits(quantised: object, name: str) -> tuple[float | None, float | None]:
    """Bits of a number of a block's linear maps, and of an expert, its share of scales included."""
    if quantised is None:
        return None, None
    found = quantised if isinstance(quantised, dict) else {}
    kind, bits, group = (found.get(key) for key in ("quant_method", "bits", "group_size"))
    if kind == "fp8":
        return 8.0, 8.0  # a scale of many thousand numbers is left out
    if kind == "mxfp4":
        return None, 4 + 8 / 32
    if kind in ("awq", "gptq") and bits in (2, 3, 4, 8):
        shared = group if type(group) is int and group > 0 else _GROUP
        return (packed := bits + (16 + bits) / shared), packed
    raise ModelError(
        f"The weights of {name[:100]!r} are quantised in a way that cannot be planned for. Give "
        "the config.json of the unquantised model, or of its AWQ, GPTQ, FP8 or MXFP4 weights."
    )


def _windows(
    config: Mapping[str, Any], family: _Family, layers: int, context: int
) -> tuple[int | None, ...]:
    """As `models.geometry.sliding_windows` reads them; a window of the whole context is none."""
    window, types = config.get("sliding_window", family.window), config.get("layer_types")
    if family.hybrid:
        every = config.get("full_attention_interval", 4)
        every = every if type(every) is int and every > 0 else 4
        sees = [not (at + 1) % every for at in range(layers)]
        if isinstance(types, list) and len(types) == layers:
            sees = [each == "full_attention" for each in types]
        if not any(sees):
            raise ModelError(
                "No layer of this model has full attention: there is nothing to evict."
            )
        return tuple(None if each else 0 for each in sees)
    if type(window) is not int or not 1 <= window < context:
        return (None,) * layers
    pattern, later = family.pattern, config.get("max_window_layers")
    first = later if config.get("use_sliding_window") and type(later) is int else layers
    if isinstance(types, list) and len(types) == layers:
        slides = [each == "sliding_attention" for each in types]
    elif pattern:
        slides = [(at + 1) % pattern > 0 for at in range(layers)]
    else:
        slides = [family.slides or at >= first for at in range(layers)]
    if all(slides):
        raise ModelError("Every layer of this model slides, so there is nothing to evict.")
    return tuple(window if each else None for each in slides)


def shape_of_text(text: str, name: str) -> ModelShape:
    """The shape of a config.json, which may be a stranger's; ModelError where it is none."""
    try:
        config = _BOUNDS.read(text[: MAX_CONFIG_BYTES + 1])
    except ConfigError as error:
        raise ModelError(f"The config of {name[:100]!r} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"The config of {name[:100]!r} is no JSON object; give a config.json.")
    return ModelShape.of(config, name)


def shape_in(path: Path, name: str) -> ModelShape:
    """The shape of a config.json, or of the folder that has one."""
    try:
        with (path / "config.json" if path.is_dir() else path).open(encoding="utf-8") as file:
            return shape_of_text(file.read(MAX_CONFIG_BYTES + 1), name)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ModelError(f"The config of {name[:100]!r} cannot be read: {reason}.") from None


# --- what a pass takes, upper bounds in bytes --------------------------------------------


def sliding_entries(window: int, chunk: int) -> int:
    """Entries that a sliding layer holds of a long prompt that is read in such chunks.

    Decoding looks at the last window - 1. The others let a prompt that differs near its end, as
    by another question, begin at the last border of chunks.
    """
    return window - 1 + chunk + 2 * KEPT_QUERIES


def activation_bytes(
    tokens: int, rows: int, itemsize: int, linear: int, hidden: int, vocabulary: int
) -> int:
    """One block's forward pass, twice each linear map's output and the norms in float32."""
    block = 2 * linear * itemsize + 6 * hidden * FLOAT
    return rows * (tokens * block + 6 * vocabulary * FLOAT)


def scan_bytes(tokens: int, heads: int, key: int, value: int) -> int:
    """A pass through one layer of linear attention, where PyTorch computes it.

    In float32: queries, keys and values in several forms, products of all pairs of a chunk, states.
    A single token is read by itself, more in whole chunks.
    """
    whole = 1 if tokens == 1 else -(-tokens // SCAN_CHUNK) * SCAN_CHUNK
    return heads * (whole * (12 * key + 8 * value + 6 * SCAN_CHUNK) + 3 * key * value) * FLOAT


def part_bytes(chunk: int, query_heads: int, head_dim: int) -> int:
    """Attention of one chunk: its parts, joined by log-sum-exp."""
    return 8 * chunk * query_heads * head_dim * FLOAT
