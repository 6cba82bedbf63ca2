"""Text to tokens: one user message through the chat template, and where the context ends."""

from dataclasses import dataclass
from itertools import pairwise

from transformers import PreTrainedTokenizerBase

from ckv_core.base.memory_line import human_bytes
from ckv_core.base.process_limits import memory_limited
from ckv_core.errors import ModelError
from ckv_core.methods.parts.views import PromptTokens
from ckv_core.records.records import PromptInfo
from ckv_core.records.run_request import Scenario, check_context, check_text

_PROBE = "ckv-probe-7f3a"  # a word that no template contains or changes
_SEPARATOR = "\n\n"
TEMPLATE_BYTES = 2**30  # a prompt of 4 million characters takes 50 MiB


@dataclass(frozen=True, slots=True)
class _Rendered:
    """The prompt's text and where the user's own text lies in it."""

    text: str
    body: slice  # characters of the user's own text
    # False for plain text, which gets the tokenizer's own special tokens (a leading BOS, say); a
    # template writes its own.
    from_template: bool


def build_prompt(
    tokenizer: PreTrainedTokenizerBase, context: str, question: str, scenario: Scenario
) -> PromptInfo:
    r"""Tokenise `context + "\n\n" + question` as one user message with generation prompt.

    Without a chat template the prompt is the plain text and a newline. Special tokens that
    occur in the user's own text are read as plain text, so a pasted `<|im_end|>` ends nothing.

    Raises:
        PromptError: empty or invalid text.
        ModelError: the chat template or tokenizer cannot say where the context ends.
    """
    check_context(context)
    check_text("question", question)
    body = context + _SEPARATOR + question if question.strip() else context
    rendered = _render(tokenizer, body)
    ids, spans = _encode(tokenizer, rendered)
    inner, context_start = rendered.text[rendered.body], rendered.body.start
    if inner not in (body, body.strip()):
        raise ModelError("The model's chat template changes the text; choose another model.")
    trimmed = 0 if inner == body else len(body) - len(body.lstrip())  # templates trim edges
    context_end = context_start + min(len(context) - trimmed, len(inner))
    ends_inside = [end <= context_end for _, end in spans]
    compressed = ends_inside.index(False) if False in ends_inside else len(spans)
    first = next((i for i, (_, end) in enumerate(spans) if end > context_start), 0)
    last = next((i for i, (start, _) in enumerate(spans) if start >= context_end), len(spans))
    pieces, covered = [], 0  # characters between tokens go to the later one, so nothing is lost
    for _, end in spans:
        pieces.append(rendered.text[covered : max(end, covered)])
        covered = max(end, covered)
    if pieces:
        pieces[-1] += rendered.text[covered:]
    return PromptInfo(
        scenario=scenario,
        token_ids=tuple(ids),
        compressed_tokens=len(ids) if scenario == "regular" else compressed,
        pieces=tuple(pieces),
        context_tokens=(first, last),
    )


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: PromptInfo) -> PromptTokens:
    """The compressed part of a prompt, and what further passes over it are made of."""

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    closing = _ends(tokenizer)[1] if tokenizer.chat_template else "\n"
    return PromptTokens(
        token_ids=prompt.token_ids[: prompt.compressed_tokens],
        lead=min(prompt.context_tokens[0], prompt.compressed_tokens - 1),
        closing=tuple(encode(closing)),
        encode=encode,
    )


def _fill(tokenizer: PreTrainedTokenizerBase, content: str) -> str:
    chat = [{"role": "user", "content": content}]
    try:
        with memory_limited(TEMPLATE_BYTES):
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return str(text)
    except MemoryError:
        raise ModelError(
            f"The model's chat template takes over {human_bytes(TEMPLATE_BYTES)} of memory; choose "
            "another model."
        ) from None
    except Exception as error:  # a template is a program of the model's, and may raise at will
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ModelError(
            f"The model's chat template failed ({type(error).__name__}: {reason}); choose "
            "another model."
        ) from error


def _ends(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """What the chat template writes before and after a user's text."""
    before, _, after = _fill(tokenizer, _PROBE).partition(_PROBE)
    return before, after


def _render(tokenizer: PreTrainedTokenizerBase, body: str) -> _Rendered:
    if not tokenizer.chat_template:
        return _Rendered(body + "\n", slice(0, len(body)), from_template=False)
    prefix, suffix = _ends(tokenizer)
    text = _fill(tokenizer, body)
    end = len(text) - len(suffix)
    if not text.startswith(prefix) or not text.endswith(suffix) or end < len(prefix):
        raise ModelError("The model's chat template rearranges the text; choose another model.")
    return _Rendered(text, slice(len(prefix), end), from_template=True)


def _encode(
    tokenizer: PreTrainedTokenizerBase, rendered: _Rendered
) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids and their character spans in the rendered text."""
    own_special = not rendered.from_template
    ids, spans = _encode_part(tokenizer, rendered.text, 0, own_special=own_special)
    special = set(tokenizer.all_special_ids)
    if not any(
        token in special and rendered.body.start <= start < end <= rendered.body.stop
        for token, (start, end) in zip(ids, spans, strict=True)
    ):
        return ids, spans
    ids, spans = [], []
    borders = (0, rendered.body.start, rendered.body.stop, len(rendered.text))
    for part, (start, end) in enumerate(pairwise(borders)):
        is_body = part == 1
        part_ids, part_spans = _encode_part(
            tokenizer,
            rendered.text[start:end],
            start,
            own_special=own_special and is_body,
            as_plain_text=is_body,
        )
        ids += part_ids
        spans += part_spans
    return ids, spans


def _encode_part(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    offset: int,
    *,
    own_special: bool,
    as_plain_text: bool = False,
) -> tuple[list[int], list[tuple[int, int]]]:
    if not tokenizer.is_fast:
        raise ModelError("The model's tokenizer gives no character offsets; choose another model.")
    encoded = tokenizer(
        text,
        add_special_tokens=own_special,
        return_offsets_mapping=True,
        split_special_tokens=as_plain_text,
        verbose=False,
    )
    spans = [(start + offset, end + offset) for start, end in encoded["offset_mapping"]]
    return list(encoded["input_ids"]), spans
