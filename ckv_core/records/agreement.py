"""How a generated text compares with the full cache's and with an expected answer. No torch."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def first_difference(token_ids: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first generated token that differs from the full cache's.

    Returns:
        None if both are the same; the shorter length if one is a prefix of the other.
    """
    for index, (ours, theirs) in enumerate(zip(token_ids, reference, strict=False)):
        if ours != theirs:
            return index
    if len(token_ids) == len(reference):
        return None
    return min(len(token_ids), len(reference))


def agreement(token_ids: Sequence[int], reference: Sequence[int]) -> float:
    """Share of the full cache's tokens reproduced before the first difference, 0 to 1."""
    if not reference:
        return 1.0
    index = first_difference(token_ids, reference)
    return 1.0 if index is None else index / len(reference)


def spaced(text: str) -> str:
    """Case folded, with single spaces: what a text is compared by."""
    return " ".join(text.casefold().split())


def answer_found(text: str, answer: str) -> bool | None:
    """Whether the expected answer occurs in the text, ignoring case and spacing.

    Returns:
        None without an expected answer.
    """
    wanted = spaced(answer)
    return wanted in spaced(text) if wanted else None


def normalised(text: str) -> str:
    """SQuAD's: lower case, without punctuation and articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """SQuAD: whether the normalised text is one of the answers."""
    return float(any(normalised(text) == normalised(answer) for answer in answers))


def token_f1(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """SQuAD and LongBench's QA: F1 of the normalised words, of the best answer."""
    own, wanted = normalised(text).split(), [normalised(each).split() for each in answers]
    return max(f1(own, each, sum((Counter(own) & Counter(each)).values())) for each in wanted)


def edit_similarity(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """1 - Levenshtein distance / length of the longer text, ignoring case and spacing."""
    from rapidfuzz.distance import Levenshtein  # noqa: PLC0415 - as platformdirs in base/home.py

    own = spaced(text)
    return max(Levenshtein.normalized_similarity(own, spaced(each)) for each in answers)


def f1(own: Sequence[str], wanted: Sequence[str], common: int) -> float:
    """Harmonic mean of precision and recall."""
    return 2 * common / (len(own) + len(wanted)) if common else 0.0


def answer_scores(text: str, answer: str) -> dict[str, float]:
    """Exact match, token F1 and edit similarity, each 0 to 1; empty without an expected answer."""
    metrics = (exact_match, token_f1, edit_similarity) if spaced(answer) else ()
    return {metric.__name__: metric(text, [answer]) for metric in metrics}
