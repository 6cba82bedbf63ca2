"""Teacher-forced strips: how each variant sees the full cache's own text. No Gradio, no clock."""

import math
from typing import Any, SupportsFloat

from ckv_core.experiment.names import display_names
from ckv_core.records.events import RunResult
from ckv_core.records.records import Candidate, VariantResult
from ui.looks.palette import looks_of
from ui.services.live_runs import RunSnapshot


def strips_value(snapshot: RunSnapshot) -> dict[str, Any]:
    """Value of the FidelityStrips; a strip of a run that is not over could still change."""
    variants = snapshot.result.variants
    looks, names = looks_of(variants), display_names(variants)
    strips = [
        {
            "index": index,
            "look": looks[index].value,
            "name": names[index],
            "address": f"/data/{snapshot.slug}/{index}/forced",
        }
        for index, variant in enumerate(variants)
        if variant.method != "full" and has_strip(variant)
    ]
    return {"strips": strips if snapshot.is_final else []}


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
