"""How a variant's generation compares with the full cache's and with a reference answer."""

from collections.abc import Sequence

import torch
from torch import Tensor


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


def answer_found(text: str, answer: str) -> bool | None:
    """Whether the reference answer occurs in the text, ignoring case and spacing.

    Returns:
        None without a reference answer.
    """
    wanted = " ".join(answer.casefold().split())
    return wanted in " ".join(text.casefold().split()) if wanted else None


def token_rank(logits: Tensor, tokens: Tensor) -> Tensor:
    """Place of a token among all by logit, 1 = best; of equal logits the lower id is first.

    Args:
        logits: [rows, positions, vocabulary].
        tokens: [positions] token ids.

    Returns:
        [rows, positions] int64.
    """
    ids = tokens.expand(logits.shape[:2])[..., None]
    own = logits.gather(-1, ids)
    above = (logits > own).count_nonzero(-1)  # a sum would make int64 of every flag
    earlier = torch.arange(logits.shape[-1], device=logits.device) < ids
    return 1 + above + ((logits == own) & earlier).count_nonzero(-1)
