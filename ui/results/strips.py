"""Teacher-forced fidelity of one variant, position by position, as the strip shows it."""

import math
from typing import Any, SupportsFloat

from ckv_core.results.events import RunResult
from ckv_core.results.records import Candidate, VariantResult


def has_strip(variant: VariantResult) -> bool:
    """Whether a variant was compared on the full cache's own text."""
    return "forced_kl" in variant.analysis


def forced_value(result: RunResult, index: int) -> dict[str, Any] | None:
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


def _candidates(found: tuple[Candidate, ...]) -> list[dict[str, Any]]:
    return [{"text": each.text, "probability": each.probability} for each in found]


def _number(value: SupportsFloat) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
