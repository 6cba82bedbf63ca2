"""The real engine behind the worker loop: keeps models, counts tokens. Imports torch."""

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from transformers import AutoConfig, PreTrainedTokenizerBase

from ckv_core.config import CompareRequest
from ckv_core.engine.compare import compare
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.prompt import build_prompt
from ckv_core.events import RunEvent
from ckv_core.metrics.memory import available_bytes
from ckv_core.modeling.checkpoint import find_checkpoint
from ckv_core.modeling.loaded import LoadedModel
from ckv_core.modeling.loading import load_model, load_tokenizer, silent
from ckv_core.records import ModelInfo

KEPT_MODELS = 2
KEPT_BYTES = 2 * 2**30  # a second model is kept only while both together stay below this
KEPT_TOKENIZERS = 4

KEPT_PREFILL_BYTES = 2**30  # per model; about 20 prompts of 1,000 tokens on the default model
KEPT_CUDA_SHARE = 4  # on CUDA up to this part of what the loaded model leaves free, if that is more

ModelKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Served:
    """A model in memory and its recent prefills, which go when it goes."""

    loaded: LoadedModel
    prefills: PrefillCache


class EngineRunner:
    """Runs comparisons on the models it keeps in memory; see `serve.Runner`."""

    def __init__(self) -> None:
        self._models: OrderedDict[ModelKey, _Served] = OrderedDict()
        # Not those of the loaded models: a tokenizer must not serve two threads at once.
        self._tokenizers: OrderedDict[str, tuple[PreTrainedTokenizerBase, int]] = OrderedDict()
        # What was imported stays for good. Every run collects garbage, and would look at all of it.
        gc.collect()
        gc.freeze()

    def load(self, model: str, device: str, dtype: str, report: Callable[[str], None]) -> ModelInfo:
        """Have this model in memory, dropping others where they would take too much of it."""
        key = (model, device, dtype)
        if key not in self._models:
            if self._bytes() > KEPT_BYTES:
                self.release()
            loaded = load_model(model, device, dtype, report)
            self._models[key] = _Served(loaded, PrefillCache(_prefill_bytes(loaded.device)))
        self._models.move_to_end(key)
        while len(self._models) > KEPT_MODELS or (
            len(self._models) > 1 and self._bytes() > KEPT_BYTES
        ):
            self._models.popitem(last=False)
            _free_memory()
        return self._models[key].loaded.info

    def compare(
        self, request: CompareRequest, should_stop: Callable[[], bool]
    ) -> Iterator[RunEvent]:
        """Run on the model that `load` has in memory."""
        served = self._models[request.model, request.device, request.dtype]
        return compare(request, served.loaded, should_stop, served.prefills)

    def count_tokens(self, request: CompareRequest) -> tuple[int, int, int]:
        """Prompt tokens, compressed tokens, context limit; needs no weights."""
        tokenizer, limit = self._tokenizer(request.model)
        prompt = build_prompt(tokenizer, request.context, request.question, request.scenario)
        return prompt.tokens, prompt.compressed_tokens, limit

    def release(self) -> None:
        """Drop all models."""
        self._models.clear()
        _free_memory()

    def _tokenizer(self, model: str) -> tuple[PreTrainedTokenizerBase, int]:
        if model not in self._tokenizers:
            self._tokenizers[model] = (load_tokenizer(model), _context_limit(model))
        self._tokenizers.move_to_end(model)
        while len(self._tokenizers) > KEPT_TOKENIZERS:
            self._tokenizers.popitem(last=False)
        return self._tokenizers[model]

    def _bytes(self) -> int:
        return sum(
            parameter.nbytes
            for served in self._models.values()
            for parameter in served.loaded.model.parameters()
        )


def _context_limit(model: str) -> int:
    """Tokens the model was trained for, from its config; 0 where that does not say."""
    checkpoint = find_checkpoint(model, silent, with_weights=False)
    gguf = {"gguf_file": checkpoint.gguf} if checkpoint.gguf else {}
    config = AutoConfig.from_pretrained(str(checkpoint.folder), trust_remote_code=False, **gguf)
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return limit if isinstance(limit, int) else 0


def _prefill_bytes(device: torch.device) -> int:
    """Bytes of prefills to keep; those of a large model are large too."""
    if device.type != "cuda":
        return KEPT_PREFILL_BYTES
    return max(KEPT_PREFILL_BYTES, available_bytes(device) // KEPT_CUDA_SHARE)


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
