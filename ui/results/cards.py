"""Cards of generated text, follow-up answers, and teacher-forced strips. No Gradio, no clock."""

import math
from typing import Any, SupportsFloat

from ckv_core.records.events import RunResult
from ckv_core.records.metrics import METRICS
from ckv_core.records.outcomes import outcome_word
from ckv_core.records.records import Candidate, FollowUp, VariantResult
from ui.looks.palette import Look, looks_of
from ui.services.live_runs import RunSnapshot


def generations_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the Generations component; None until the variants are known."""
    result = snapshot.result
    if not result.variants:
        return None
    reference = next((v for v in result.variants if v.method == "full"), None)
    looks = looks_of(result.variants)
    return {
        "cards": [
            {
                **_named(index, variant, looks[index]),
                "status": _status(snapshot, variant),
                "chips": _variant_chips(variant),
                "token_texts": list(variant.token_texts),
                "first_difference": variant.first_difference,
                "reference": variant is reference,
                "stopped": variant.stopped,
                "answer": outcome_word(variant) or None,
                "forced": _strip_address(snapshot, index),
            }
            for index, variant in enumerate(result.variants)
            if variant.token_ids or variant.stopped or not snapshot.is_final
        ],
        "answer": snapshot.request.answer,
    }


def follow_ups_value(snapshot: RunSnapshot) -> dict[str, Any]:
    """Value of the FollowUpAnswers component; no question is shown before it is answered."""
    variants = snapshot.result.variants
    looks = looks_of(variants)
    count = max((len(v.follow_ups) for v in variants), default=0)
    return {
        "questions": [
            {
                "question": next(v.follow_ups[at].question for v in variants if _has(v, at)),
                "cards": [
                    _answer_card(
                        _named(index, variant, looks[index]), variant, variant.follow_ups[at]
                    )
                    for index, variant in enumerate(variants)
                    if _has(variant, at)
                ],
            }
            for at in range(count)
        ]
    }


def _has(variant: VariantResult, at: int) -> bool:
    return len(variant.follow_ups) > at


def _answer_card(named: dict[str, Any], variant: VariantResult, answer: FollowUp) -> dict[str, Any]:
    is_full = variant.method == "full"
    chips = [] if answer.agreement is None or is_full else [f"{answer.agreement:.0%} agreement"]
    return {
        **named,
        "status": "done",
        "chips": chips,
        "token_texts": list(answer.token_texts),
        "first_difference": answer.first_difference,
        "reference": is_full,
        "stopped": answer.stopped,
        "answer": None,
        "forced": None,
    }


def _named(index: int, variant: VariantResult, look: Look) -> dict[str, Any]:
    return {"index": index, "look": look.value, "label": variant.label, "spec": variant.spec}


def _strip_address(snapshot: RunSnapshot, index: int) -> str | None:
    """Only of a run that is over: until then the strip could still change."""
    variant = snapshot.result.variants[index]
    if variant.method == "full" or not snapshot.is_final or not has_strip(variant):
        return None
    return f"/data/{snapshot.slug}/{index}/forced"


def _status(snapshot: RunSnapshot, variant: VariantResult) -> str:
    if variant.stopped is not None:
        return "done"
    if snapshot.is_final:
        return snapshot.state
    count = len(variant.token_ids)
    return f"{count} of {snapshot.request.max_new_tokens} tokens" if count else "waiting"


def _variant_chips(variant: VariantResult) -> list[str]:
    chips = []
    share = METRICS["share"].read(variant)
    if share is not None:
        chips.append(f"{share:.1%} of the cache")
    if variant.agreement is not None and variant.method != "full":
        chips.append(f"{variant.agreement:.0%} agreement")
    return chips


def has_strip(variant: VariantResult) -> bool:
    """Whether a variant was compared on the full cache's own text."""
    return "forced_kl" in variant.analysis


def teacher_forced_value(result: RunResult, index: int) -> dict[str, Any] | None:
    """Tokens of the full cache's text and how the variant sees each; None if not measured."""
    if not 0 <= index < len(result.variants) or not has_strip(result.variants[index]):
        return None
    variant = result.variants[index]
    arrays = {key: variant.analysis.get(f"forced_{key}") for key in ("top1", "kl", "rank")}
    return {
        # The full cache's first choices are its own text; a run may hold no such variant.
        "tokens": [
            step.reference[0].text if step.reference else "" for step in variant.forced_steps
        ],
        **{
            key: [] if values is None else [_number(value) for value in values]
            for key, values in arrays.items()
        },
        "steps": [
            {"full": _candidates(step.reference), "variant": _candidates(step.variant)}
            for step in variant.forced_steps
        ],
    }


def _candidates(candidates: tuple[Candidate, ...]) -> list[dict[str, Any]]:
    return [{"text": each.text, "probability": each.probability} for each in candidates]


def _number(value: SupportsFloat) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
