"""The prompt by the public contract: one user message through the chat template, tokenised."""

from dataclasses import dataclass
from typing import Any


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
    starts = [start for start, _ in encoded["offset_mapping"]]
    behind = sum(start < context_end for start in starts)
    if scenario == "regular":
        return ReferencePrompt(token_ids, len(token_ids), behind)
    compressed = 0
    for _, token_end in encoded["offset_mapping"]:
        if token_end > context_end:
            break
        compressed += 1
    return ReferencePrompt(token_ids, compressed, behind)
