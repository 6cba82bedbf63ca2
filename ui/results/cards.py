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
    variants = snapshot.result.variants
    if not variants:
        return None
    looks, cards = looks_of(variants), []
    for index, variant in enumerate(variants):
        if snapshot.is_final and not (variant.token_ids or variant.stopped):
            continue
        card = _card(index, variant, looks[index], variant)
        if (share := METRICS["share"].read(variant)) is not None:
            card["chips"].insert(0, f"{share:.1%} of the cache")
        # The strip of a run that is not over could still change.
        if variant.method != "full" and snapshot.is_final and has_strip(variant):
            card["forced"] = f"/data/{snapshot.slug}/{index}/forced"
        card |= {"status": _status(snapshot, variant), "answer": outcome_word(variant) or None}
        cards.append(card)
    return {"cards": cards, "answer": snapshot.request.answer}


def follow_ups_value(snapshot: RunSnapshot) -> dict[str, Any]:
    """Value of the FollowUpAnswers component; no question is shown before it is answered."""
    variants = snapshot.result.variants
    looks, questions = looks_of(variants), []
    for at in range(max((len(v.follow_ups) for v in variants), default=0)):
        answered = [(i, v) for i, v in enumerate(variants) if len(v.follow_ups) > at]
        cards = [_card(i, v, looks[i], v.follow_ups[at]) for i, v in answered]
        questions.append({"question": answered[0][1].follow_ups[at].question, "cards": cards})
    return {"questions": questions}


def _card(
    index: int, variant: VariantResult, look: Look, written: VariantResult | FollowUp
) -> dict[str, Any]:
    """The card of a text that a variant has written to its end."""
    is_full, same = variant.method == "full", written.agreement
    return {
        "index": index,
        "look": look.value,
        "label": variant.label,
        "spec": variant.spec,
        "status": "done",
        "chips": [] if same is None or is_full else [f"{same:.0%} agreement"],
        "token_texts": list(written.token_texts),
        "first_difference": written.first_difference,
        "reference": is_full,
        "stopped": written.stopped,
        "answer": None,
        "forced": None,
    }


def _status(snapshot: RunSnapshot, variant: VariantResult) -> str:
    if variant.stopped is not None:
        return "done"
    if snapshot.is_final:
        return snapshot.state
    count = len(variant.token_ids)
    return f"{count} of {snapshot.request.max_new_tokens} tokens" if count else "waiting"


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
