"""A comparison, the slow way: prefill, decode on the masked full cache, a measured step."""

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor
from transformers import DynamicCache

from tests.reference.forward import Kept, Tap, forward, output_sizes
from tests.reference.keep import Prefilled, max_window


@dataclass(frozen=True)
class ReferencePrompt:
    """token_ids of the whole prompt; the first `compressed` of them are subject to eviction.

    `behind` is the first token that begins at the context's end or later.
    """

    token_ids: list[int]
    compressed: int
    behind: int


def build_prompt(tokenizer: Any, context: str, question: str, scenario: str) -> ReferencePrompt:
    """Contract "Prompt": context, blank line, question; template; where compression ends."""
    message = context + "\n\n" + question if question else context
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
        )
    else:
        text = message + "\n"
    # A template writes the special tokens itself; plain text needs the tokenizer's own.
    encoded = tokenizer(
        text, add_special_tokens=not tokenizer.chat_template, return_offsets_mapping=True
    )
    token_ids = list(encoded["input_ids"])
    context_end = text.index(message) + len(context)
    behind = sum(start < context_end for start, _ in encoded["offset_mapping"])
    inside = sum(end <= context_end for _, end in encoded["offset_mapping"])
    return ReferencePrompt(token_ids, len(token_ids) if scenario == "regular" else inside, behind)


@dataclass
class Reference:
    """Runs variants on one model and prompt."""

    model: Any
    prompt: ReferencePrompt
    prefilled: Prefilled
    first_logits: Tensor

    @classmethod
    def prefill(
        cls, model: Any, prompt: ReferencePrompt, params: list[dict[str, Any]]
    ) -> "Reference":
        """One full-attention pass over the compressed part of the prompt."""
        tap = Tap(rows=max_window(params))
        cache = DynamicCache(config=model.config)
        logits = forward(model, prompt.token_ids[: prompt.compressed], cache, tap=tap)
        positions, behind = prompt.compressed, prompt.behind
        prefilled = Prefilled(model, tap, copy.deepcopy(cache), positions, {}, behind)
        return cls(model, prompt, prefilled, logits)

    def read_question(self, kept: Kept | None) -> tuple[DynamicCache, Tensor]:
        """Scenario context-only: the question sees the kept context and all of itself."""
        cache = copy.deepcopy(self.prefilled.cache)
        rest = self.prompt.token_ids[self.prompt.compressed :]
        if not rest:
            return cache, self.first_logits
        return cache, forward(self.model, rest, cache, kept=kept)

    def generate(self, kept: Kept | None, steps: int) -> list[int]:
        """Greedy decoding with this variant's own tokens."""
        cache, logits = self.read_question(kept)
        tokens = [int(logits.argmax())]
        while len(tokens) < steps:
            tokens.append(int(forward(self.model, tokens[-1:], cache, kept=kept).argmax()))
        return tokens

    @cached_property
    def token(self) -> int:
        """The full run's first generated one."""
        return int(self.read_question(None)[1].argmax())

    @cached_property
    def full_step(self) -> tuple[Tap, DynamicCache, Tensor]:
        """The measured step of the full cache."""
        return self.first_step(None)

    @cached_property
    def sizes(self) -> list[list[float]]:
        """Of what each head gives in the measured step."""
        return output_sizes(self.model, *self.full_step[:2])

    def first_step(self, kept: Kept | None) -> tuple[Tap, DynamicCache, Tensor]:
        """The first decoding step, fed with the full run's first generated token."""
        cache, _ = self.read_question(kept)
        tap = Tap(rows=1)
        logits = forward(self.model, [self.token], cache, tap=tap, kept=kept)
        return tap, cache, logits
