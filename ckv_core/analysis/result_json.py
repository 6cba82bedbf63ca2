"""The result JSON: what `compare --json` writes, Export gives and Import takes.

docs/result_json.md describes the format.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ckv_core.analysis.derived_json import readings_json
from ckv_core.results.diagnostics_json import array_json, diagnostics_json, number_json
from ckv_core.results.events import RunResult
from ckv_core.results.held_json import held_json
from ckv_core.results.reader import SCHEMA, from_json
from ckv_core.results.records import (
    ModelInfo,
    Perturbation,
    PromptInfo,
    Receipt,
    RetainedSet,
    RoundingFloor,
    VariantResult,
)

__all__ = ["SCHEMA", "from_json", "measured_json", "to_json"]


def to_json(result: RunResult, passages: Sequence[str] = ()) -> dict[str, Any]:
    """A run, whole or partial, as plain JSON values; no NaN or infinity among them.

    Args:
        result: the run.
        passages: texts whose kept slots are counted in `readings`; one that does not occur in
            the compressed prompt is there without spans.
    """
    return measured_json(result) | {"readings": readings_json(result, passages)}


def measured_json(result: RunResult) -> dict[str, Any]:
    """`to_json` without what follows from the rest: all that `from_json` reads."""
    evictable = result.model.evictable_layers if result.model else ()
    return {
        "schema": SCHEMA,
        "kind": result.kind,
        "finished": result.finished,
        "model": _model_json(result.model) if result.model else None,
        "prompt": _prompt_json(result.prompt) if result.prompt else None,
        "timings_ms": dict(result.timings_ms),
        "memory": dict(result.memory),
        "floor": _floor_json(result.floor) if result.floor else None,
        "variants": [_variant_json(variant, evictable) for variant in result.variants],
        "environment": dict(result.environment),
    }


def _model_json(model: ModelInfo) -> dict[str, Any]:
    return {
        "name": model.name,
        "sha256": model.sha256,
        "layers": model.layers,
        "query_heads": model.query_heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "dtype": model.dtype,
        "device": model.device,
        "evictable_layers": list(model.evictable_layers),
        "context_limit": model.context_limit,
    }


def _prompt_json(prompt: PromptInfo) -> dict[str, Any]:
    return {
        "scenario": prompt.scenario,
        "tokens": prompt.tokens,
        "compressed_tokens": prompt.compressed_tokens,
        "token_ids": list(prompt.token_ids),
        "pieces": list(prompt.pieces),
        "context_tokens": list(prompt.context_tokens),
    }


def _floor_json(floor: RoundingFloor) -> dict[str, Any]:
    return {
        "layer_hidden_l1": array_json(floor.layer_hidden_l1),
        "final_hidden_l1": number_json(floor.final_hidden_l1),
        "kl": number_json(floor.kl),
    }


def _variant_json(variant: VariantResult, evictable: tuple[int, ...]) -> dict[str, Any]:
    receipt = variant.receipt
    return {
        "spec": variant.spec,
        "label": variant.label,
        "method": variant.method,
        "critical": variant.critical,
        "params": dict(variant.params),
        "retained": _retained_json(variant.retained, evictable) if variant.retained else None,
        "receipt": _receipt_json(receipt) if receipt else None,
        "text": variant.text,
        "token_ids": list(variant.token_ids),
        "token_texts": list(variant.token_texts),
        "stopped": variant.stopped,
        "agreement": variant.agreement,
        "first_difference": variant.first_difference,
        "answer_found": variant.answer_found,
        "perturbation": _perturbation_json(variant.perturbation),
        "timings_ms": dict(variant.timings_ms),
        **diagnostics_json(variant),
        "held": held_json(variant.held),
    }


def _receipt_json(receipt: Receipt) -> dict[str, Any]:
    return {
        "budget_tokens": receipt.budget_tokens,
        "requested_entries": receipt.requested_entries,
        "retained_entries": receipt.retained_entries,
        "cache_bytes": receipt.cache_bytes,
        "full_cache_bytes": receipt.full_cache_bytes,
        "warnings": list(receipt.warnings),
    }


def _retained_json(retained: RetainedSet, evictable: tuple[int, ...]) -> list[Any]:
    mask = retained.mask()
    return [
        [np.flatnonzero(row).tolist() for row in heads] if layer in evictable else None
        for layer, heads in enumerate(mask)
    ]


def _perturbation_json(perturbation: Perturbation | None) -> dict[str, Any]:
    if perturbation is None:
        return {"head_l1": None, "layer_hidden_l1": None, "final_hidden_l1": None}
    base = perturbation.base_head_l1
    measured = not np.isnan(perturbation.head_l1).all()
    return {
        "head_l1": array_json(perturbation.head_l1),
        "base_head_l1": None if base is None else array_json(base),
        "improved_head_share": perturbation.improved_head_share if measured else None,
        "layer_hidden_l1": array_json(perturbation.layer_hidden_l1),
        "final_hidden_l1": number_json(perturbation.final_hidden_l1),
        "kl": number_json(perturbation.kl),
    }
