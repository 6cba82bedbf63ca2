"""A model shaped like Llama-3.1-8B with random weights, on CUDA: stages and memory at length.

Random weights cost what trained ones do; what is kept and generated means nothing.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from benchmarks.tables import memory_cells, selection_share, table
from ckv_core.cache import ragged
from ckv_core.cache.varlen import usable_kernel
from ckv_core.config import CompareRequest
from ckv_core.engine.compare import compare
from ckv_core.events import RunResult
from ckv_core.modeling.loaded import LoadedModel, wrap_model

LENGTHS = (8_192, 32_768, 131_072)
NEW_TOKENS = 32
SHAPE = {
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 2 * LENGTHS[-1],
}


def build(
    tokenizer: PreTrainedTokenizerBase, device: str, shape: dict[str, int] = SHAPE
) -> LoadedModel:
    """Random bfloat16 weights, made on the device; any tokenizer with fewer tokens serves."""
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**shape, dtype="bfloat16")).to(torch.bfloat16)
    return wrap_model(model, tokenizer, name="Llama-3.1-8B shape", sha256="0" * 64)


def against_length(
    loaded: LoadedModel, variants: tuple[str, ...], lengths: tuple[int, ...] = LENGTHS
) -> None:
    """All variants at a 10 % budget, evicted rows by the variable-length kernel and by stacks."""
    rows = []
    kernel = usable_kernel(loaded.device, loaded.model.dtype, loaded.info.head_dim)
    for length in lengths:
        result = _run(loaded, variants, length)
        by_stacks = "the same"  # no such kernel here
        if kernel is not None:
            ragged.usable_kernel = lambda *_kinds: None
            try:
                by_stacks = _step(_run(loaded, variants, length))
            finally:
                ragged.usable_kernel = usable_kernel
        assert result.prompt is not None
        times = result.timings_ms
        stages = [f"{times[name]:,.0f}" for name in ("prefill", "score", "select")]
        share = selection_share(times)
        steps = (_step(result), by_stacks)
        rows.append((f"{result.prompt.tokens:,}", *stages, *steps, share, *memory_cells(result)))
    header = ("prompt tokens", "prefill ms", "score ms", "select ms")
    header += ("decode ms a step", "by stacks", "selection of prefill")
    memory = ("estimate MiB", "measured peak MiB", "full cache MiB")
    table(loaded.info.name, (*header, *memory), rows)


def _run(loaded: LoadedModel, variants: tuple[str, ...], length: int) -> RunResult:
    word = " water"  # one token in most vocabularies; the table gives the true length
    request = CompareRequest(
        context=word * length,
        variants=variants,
        defaults={"budget": "10%"},
        max_new_tokens=NEW_TOKENS,
        ignore_eos=True,
    )
    result = RunResult()
    for event in compare(request, loaded):
        result.apply(event)
    return result


def _step(result: RunResult) -> str:
    """Milliseconds of one decoding step."""
    return f"{result.timings_ms['decode'] / (NEW_TOKENS - 1):.1f}"
