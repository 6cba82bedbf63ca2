"""Counts a prompt's tokens: tokenizers without models, in the counting process."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from ckv_core.engine.prompt import build_prompt
from ckv_core.models.checkpoint import find_checkpoint
from ckv_core.models.geometry import context_limit
from ckv_core.models.gguf_store import header_limit_s, kept_conversion
from ckv_core.models.loading import read_config, read_tokenizer
from ckv_core.models.steps import silent
from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker.counting import Steps

KEPT_TOKENIZERS = 4
COUNT_S = 15.0
CHARACTERS_PER_S = 50_000


@dataclass(slots=True)
class _Kept:
    """A tokenizer, which serves one thread at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    tokenizer: PreTrainedTokenizerBase | None = None
    limit: int = 0


class CountRunner:
    """See `counting.Counter`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def count_tokens(self, request: CompareRequest, step: Steps) -> tuple[int, int, int, int]:
        """Needs no weights; the first count of a model may fetch its tokenizer."""
        with self._lock:
            kept = self._kept.setdefault(request.model, _Kept())
            self._kept.move_to_end(request.model)
            while len(self._kept) > KEPT_TOKENIZERS:
                self._kept.popitem(last=False)
        with kept.lock:
            tokenizer, limit = self._tokenizer(kept, request.model, step)
            characters = len(request.context) + len(request.question)
            step("Counting the prompt's tokens", COUNT_S + characters / CHARACTERS_PER_S)
            prompt = build_prompt(tokenizer, request.context, request.question, request.scenario)
        return prompt.tokens, prompt.compressed_tokens, limit, len(prompt.question)

    def _tokenizer(
        self, kept: _Kept, model: str, step: Steps
    ) -> tuple[PreTrainedTokenizerBase, int]:
        if kept.tokenizer is None:
            checkpoint = find_checkpoint(model, silent, with_weights=False)  # may have to wait
            checkpoint = kept_conversion(checkpoint)
            step(f"Reading the tokenizer of {model!r}", header_limit_s(checkpoint))
            kept.limit = context_limit(read_config(checkpoint)) or 0
            kept.tokenizer = read_tokenizer(checkpoint)
        return kept.tokenizer, kept.limit
