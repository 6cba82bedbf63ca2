"""How a generated text compares with the full cache's and with a reference answer. No torch."""

from collections.abc import Sequence


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
    """Whether the reference answer occurs in the text, ignoring case and spacing.

    Returns:
        None without a reference answer.
    """
    wanted = spaced(answer)
    return wanted in spaced(text) if wanted else None


def answer_scores(text: str, answer: str) -> dict[str, float]:
    """Exact match, token F1 and edit similarity, each 0 to 1; empty without a reference answer.

    Exact match and F1 are SQuAD's: case, punctuation and articles do not count. Edit similarity
    is 1 - Levenshtein distance / length of the longer text, ignoring case and spacing.
    """
    if not spaced(answer):
        return {}
    # Imported here: a run without a reference answer needs neither.
    from rapidfuzz.distance import Levenshtein  # noqa: PLC0415 - see above
    from torchmetrics.functional.text import squad  # noqa: PLC0415 - takes seconds to import

    scores = squad(
        [{"prediction_text": text, "id": "0"}],
        [{"answers": {"answer_start": [0], "text": [answer]}, "id": "0"}],
    )
    return {
        "exact_match": float(scores["exact_match"]) / 100,
        "token_f1": float(scores["f1"]) / 100,
        "edit_similarity": Levenshtein.normalized_similarity(spaced(text), spaced(answer)),
    }
