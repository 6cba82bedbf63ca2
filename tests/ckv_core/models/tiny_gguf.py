"""A tiny Llama GGUF with a byte-level tokenizer, and an independent reader of its weights."""

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from torch import Tensor

from tests.factories.models import CHAT_TEMPLATE, tiny_tokenizer

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDTH, LAYERS = 64, 4, 2, 16, 96, 2
_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_tiny_gguf(path: Path) -> None:
    """Quantised (Q8_0) matrices, float norms, tied embeddings, as small checkpoints ship."""
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_tokenizer(writer)
    generator = np.random.default_rng(20250204)
    for name, shape in _tensor_shapes().items():
        values = generator.normal(0, 0.2, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values + 1)
        else:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: GGUFWriter) -> None:
    tokenizer = tiny_tokenizer()
    vocabulary = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = set(tokenizer.all_special_tokens)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token in special else 1 for token in vocabulary])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)


def _tensor_shapes() -> dict[str, tuple[int, ...]]:
    queries, entries = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    block = {
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
        "attn_q": (queries, HIDDEN),
        "attn_k": (entries, HIDDEN),
        "attn_v": (entries, HIDDEN),
        "attn_output": (HIDDEN, queries),
        "ffn_gate": (WIDTH, HIDDEN),
        "ffn_up": (WIDTH, HIDDEN),
        "ffn_down": (HIDDEN, WIDTH),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tiny_tokenizer()), HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def read_gguf_weights(path: Path) -> dict[str, Tensor]:
    """Dequantised weights by transformers' names, read with the gguf package alone.

    A GGUF interleaves the two RoPE halves of each head's query and key rows; undone here.
    """
    weights: dict[str, Tensor] = {}
    for tensor in GGUFReader(path).tensors:
        parts = tensor.name.split(".")
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):
                count = HEADS if parts[2] == "attn_q" else KV_HEADS
                rows = values.reshape(count, -1, 2, values.shape[-1])
                values = rows.transpose(1, 2).reshape(values.shape)
            weights[f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.weight"] = values
        else:
            name = {"token_embd": "embed_tokens", "output_norm": "norm"}[parts[0]]
            weights[f"model.{name}.weight"] = values
    return weights
