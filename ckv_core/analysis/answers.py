"""How close a text is to the reference answer, by the measures that are usual for it."""


def answer_scores(text: str, answer: str) -> dict[str, float]:
    """Exact match, token F1 and edit similarity, each 0 to 1.

    Exact match and F1 are SQuAD's: case, punctuation and articles do not count. Edit similarity
    is 1 - Levenshtein distance / length of the longer text, ignoring case and spacing.

    Args:
        text: what was generated.
        answer: the reference answer.

    Returns:
        exact_match, token_f1 and edit_similarity; empty without a reference answer.
    """
    wanted = " ".join(answer.casefold().split())
    if not wanted:
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
        "edit_similarity": Levenshtein.normalized_similarity(
            " ".join(text.casefold().split()), wanted
        ),
    }
