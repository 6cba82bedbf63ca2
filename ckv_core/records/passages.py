"""Where a text lies in a prompt: token spans of its occurrences. No torch."""

import re
from collections.abc import Sequence

import numpy as np

from ckv_core.records.records import PromptInfo
from ckv_core.records.run_request import TOKEN_RANGE


def occurrences(pieces: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Token spans in which a text occurs, ignoring case and spacing as `answer_found` does.

    Args:
        pieces: text of each token, in order; give the compressed ones to search only those.
        text: what to look for; it may begin and end inside a token.

    Returns:
        (first, end) of each, in order, not overlapping; empty if the text is blank.
    """
    words = text.casefold().split()
    folded = [piece.casefold() for piece in pieces]
    ends = np.cumsum([len(piece) for piece in folded])
    # A text longer than the prompt is not worth compiling: that may take seconds.
    if not words or not folded or sum(map(len, words)) + len(words) - 1 > ends[-1]:
        return []
    matches = re.finditer(r"\s+".join(map(re.escape, words)), "".join(folded))
    borders = np.array([(match.start(), match.end() - 1) for match in matches]).reshape(-1, 2)
    tokens = np.searchsorted(ends, borders, side="right")
    return [(int(first), int(last) + 1) for first, last in tokens]


_END = re.compile(r"[.!?][\"')\]]*\s*$|\n")
MOST_AROUND = 64  # tokens of a sentence on each side of the words in it


def evidence_spans(prompt: PromptInfo, texts: Sequence[str], answer: str) -> list[tuple[int, int]]:
    """Where these texts occur in the compressed prompt, or the sentences that hold the answer.

    `texts` may be positions too, `tokens:FIRST-LAST`. The question holds no evidence.
    """
    first, end = prompt.context_tokens
    pieces = prompt.pieces[: min(end, prompt.compressed_tokens)]
    found = [span for text in texts for span in _given(pieces, text)]
    if texts or not answer.strip():
        return found
    return [_sentence(pieces, first, span) for span in occurrences(pieces, answer)]


def _given(pieces: Sequence[str], text: str) -> list[tuple[int, int]]:
    if (match := TOKEN_RANGE.fullmatch(text.strip())) is None:
        return occurrences(pieces, text)
    first, end = int(match[1]), min(int(match[2]) + 1, len(pieces))
    return [(first, end)] if first < end else []


def _sentence(pieces: Sequence[str], least: int, span: tuple[int, int]) -> tuple[int, int]:
    """The span up to the ends of its sentence."""
    first, end = span
    while first > max(least, span[0] - MOST_AROUND) and not _END.search(pieces[first - 1]):
        first -= 1
    while end < min(len(pieces), span[1] + MOST_AROUND) and not _END.search(pieces[end - 1]):
        end += 1
    return first, end


def spans_of(prompt: PromptInfo, text: str) -> list[tuple[int, int]]:
    """Where a text occurs in the compressed prompt; empty if it does not."""
    return occurrences(prompt.pieces[: prompt.compressed_tokens], text)
