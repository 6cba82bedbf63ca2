"""Text to tokens: one user message through the chat template, and where the context ends."""

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedTokenizerBase

from ckv_core.base.memory_line import human_bytes
from ckv_core.base.process_limits import memory_limited
from ckv_core.errors import ModelError
from ckv_core.methods.parts.views import PromptTokens
from ckv_core.records.records import PromptInfo
from ckv_core.records.run_request import RunRequest, Scenario, check_context, check_text

_PROBE = "ckv-probe-7f3a"  # a word that no template contains or changes
_SEPARATOR = "\n\n"
Token = tuple[int, tuple[int, int]]  # its id, and its characters in the text
TEMPLATE_BYTES = 2**30  # a prompt of 4 million characters takes 50 MiB


def prompt_of(tokenizer: PreTrainedTokenizerBase, request: RunRequest, **other: str) -> PromptInfo:
    """The prompt of a request, or of it with another context or question; see `build_prompt`."""
    texts = {"context": request.context, "question": request.question} | other
    return build_prompt(
        tokenizer, **texts, scenario=request.scenario, answer_prefix=request.answer_prefix
    )


def build_prompt(
    tokenizer: PreTrainedTokenizerBase,
    context: str,
    question: str,
    scenario: Scenario,
    answer_prefix: str | None = None,
) -> PromptInfo:
    r"""Tokenise `context + "\n\n" + question` as one user message with generation prompt.

    Without a chat template the prompt is the plain text and a newline. Special tokens that
    occur in the user's own text are read as plain text, so a pasted `<|im_end|>` ends nothing.

    With an answer prefix it is as kvpress's pipeline makes it: context and question joined as they
    are, thinking off, the prefix behind the generation prompt, and what follows the context
    tokenised apart. Special tokens of the prefix count.

    Raises:
        PromptError: empty or invalid text.
        ModelError: the chat template or tokenizer cannot say where the context ends.
    """
    check_context(context)
    check_text("question", question)
    if answer_prefix is None:
        body = context + _SEPARATOR + question if question.strip() else context
        text, own = _render(tokenizer, body)
        ids, spans = zip(*_encode(tokenizer, text, own), strict=True)
    else:
        body = context
        text, own, tokens = _apart(tokenizer, context, question, answer_prefix)
        ids, spans = zip(*tokens, strict=True)
    inner, context_start = text[own], own.start
    if inner not in (body, body.strip(), body.lstrip()):
        raise ModelError("The model's chat template changes the text; choose another model.")
    trimmed = 0 if inner == body else len(body) - len(body.lstrip())  # templates trim edges
    context_end = context_start + min(len(context) - trimmed, len(inner))
    ends_inside = [end <= context_end for _, end in spans]
    compressed = ends_inside.index(False) if False in ends_inside else len(spans)
    first = next((i for i, (_, end) in enumerate(spans) if end > context_start), 0)
    last = next((i for i, (start, _) in enumerate(spans) if start >= context_end), len(spans))
    pieces, covered = [], 0  # characters between tokens go to the later one, so nothing is lost
    for _, end in spans:
        pieces.append(text[covered : max(end, covered)])
        covered = max(end, covered)
    if pieces:
        pieces[-1] += text[covered:]
    return PromptInfo(
        scenario=scenario,
        token_ids=ids,
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


def _apart(
    tokenizer: PreTrainedTokenizerBase, context: str, question: str, answer_prefix: str
) -> tuple[str, slice, list[Token]]:
    """The prompt's text, the context in it, and its tokens, none of them across the context's end.

    Of a template a marker behind the context shows what follows, and keeps blanks at its end.
    """
    start, after = "", "\n"
    if tokenizer.chat_template:
        filled = _fill(tokenizer, context + _PROBE, enable_thinking=False)
        head, _, after = filled.rpartition(_PROBE)
        start = _fill(tokenizer, _PROBE, enable_thinking=False).partition(_PROBE)[0]
    else:
        head = context
    own, rest = slice(len(start), len(head)), question + after + answer_prefix
    tokens = _encode(tokenizer, head, own)
    behind = _encode(tokenizer, rest, slice(0, len(question)), begins=False)
    moved = [(token, (a + len(head), b + len(head))) for token, (a, b) in behind]
    return head + rest, own, tokens + moved


def _fill(tokenizer: PreTrainedTokenizerBase, content: str, **more: Any) -> str:
    chat = [{"role": "user", "content": content}]
    more |= {"tokenize": False, "add_generation_prompt": True}
    try:
        with memory_limited(TEMPLATE_BYTES):
            text = tokenizer.apply_chat_template(chat, **more)
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
    """Returns the text that the chat template writes before and after a user's."""
    before, _, after = _fill(tokenizer, _PROBE).partition(_PROBE)
    return before, after


def _render(tokenizer: PreTrainedTokenizerBase, body: str) -> tuple[str, slice]:
    """The prompt's text, and the characters of it that are the user's own."""
    if not tokenizer.chat_template:
        return body + "\n", slice(0, len(body))
    prefix, suffix = _ends(tokenizer)
    text = _fill(tokenizer, body)
    end = len(text) - len(suffix)
    if not text.startswith(prefix) or not text.endswith(suffix) or end < len(prefix):
        raise ModelError("The model's chat template rearranges the text; choose another model.")
    return text, slice(len(prefix), end)


def _encode(
    tokenizer: PreTrainedTokenizerBase, text: str, own: slice, *, begins: bool = True
) -> list[Token]:
    """Token ids with their character spans in the text, of which the user's own part is `own`."""
    if not tokenizer.is_fast:
        raise ModelError("The model's tokenizer gives no character offsets; choose another model.")
    # A template writes its own special tokens; plain text gets the tokenizer's (a leading BOS).
    adds = begins and not tokenizer.chat_template

    def encoded(start: int, end: int, *, adds: bool, as_plain_text: bool) -> Iterator[Any]:
        found = tokenizer(
            text[start:end],
            add_special_tokens=adds,
            return_offsets_mapping=True,
            split_special_tokens=as_plain_text,
            verbose=False,
        )
        spans = ((first + start, last + start) for first, last in found["offset_mapping"])
        return zip(found["input_ids"], spans, strict=True)

    tokens = list(encoded(0, len(text), adds=adds, as_plain_text=False))
    special = set(tokenizer.all_special_ids)
    if any(
        token in special and own.start <= start < end <= own.stop for token, (start, end) in tokens
    ):
        before = encoded(0, own.start, adds=False, as_plain_text=False)
        inside = encoded(own.start, own.stop, adds=adds, as_plain_text=True)
        after = encoded(own.stop, len(text), adds=False, as_plain_text=False)
        tokens = [*before, *inside, *after]
    return tokens
