"""What one generation came to: answered or not, the full cache's text or not. No torch."""

from collections.abc import Iterable
from typing import Literal

from ckv_core.results.records import VariantResult

# A generation that the limit of new tokens cut before the answer is not a wrong one.
AnswerOutcome = Literal["found", "missing", "cut"]


def answer_outcome(variant: VariantResult) -> AnswerOutcome | None:
    """None without a reference answer, and until the generation is over."""
    if variant.answer_found is None:
        return None
    if variant.answer_found:
        return "found"
    return "cut" if variant.stopped == "length" else "missing"


def is_cut(variant: VariantResult) -> bool:
    """Whether generation met the limit of new tokens before the reference answer."""
    return answer_outcome(variant) == "cut"


def writes_same_text(variant: VariantResult) -> bool | None:
    """Whether every token is the full cache's; None until the run is over."""
    return None if variant.agreement is None else variant.first_difference is None


def has_exact_match(variants: Iterable[VariantResult]) -> bool:
    """Whether exact match says anything: not where the full cache's own text has none."""
    own = (v.answer_scores.get("exact_match", 0.0) for v in variants if v.method == "full")
    return any(score > 0 for score in own)


def kl_where_it_fails(variant: VariantResult) -> float | None:
    """KL in nats from the full cache at the first token that differs.

    Up to there the variant read the same tokens, so its teacher-forced step is its own. None
    where no token differs or fidelity was not measured.
    """
    measured, at = variant.analysis.get("forced_kl"), variant.first_difference
    if measured is None or at is None or at >= len(measured):
        return None
    return float(measured[at])
