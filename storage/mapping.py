"""Records to columns and rows to records; no query here."""

import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from typing import Any, Literal, cast

import numpy as np

from ckv_core.request.compare_request import CompareRequest, Scenario
from ckv_core.request.external_selection import ExternalSelection
from ckv_core.results.external_selection_json import own_from_json, own_to_json
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import (
    Candidate,
    Float32Array,
    FollowUp,
    ForcedStep,
    HeldSeries,
    ModelInfo,
    Perturbation,
    PromptInfo,
    Receipt,
    RetainedSet,
    RoundingFloor,
    VariantResult,
)
from ckv_core.runtime.json_fields import JsonField
from storage.codecs import (
    EncodedArray,
    decode_floats,
    decode_held,
    decode_ints,
    decode_json,
    decode_retained,
    decode_texts,
    encode_floats,
    encode_held,
    encode_ints,
    encode_json,
    encode_retained,
    encode_texts,
)
from storage.models import JsonObject, Prompt, Variant

Columns = dict[str, Any]
# Texts of a request live in the table prompts, so that a list of runs need not read them.
TEXT_FIELDS = ("context", "question", "answer")
# So do kept positions of the user's own, for the same reason.
_ELSEWHERE = (*TEXT_FIELDS, "own_indices")
_LIST_FIELDS = ("variants", "analysis", "follow_ups", "protect")


def request_json(request: CompareRequest) -> JsonObject:
    """A request without its texts and its external selections."""
    names = (field.name for field in fields(request))
    values = {name: getattr(request, name) for name in names if name not in _ELSEWHERE}
    lists = {name: list(getattr(request, name)) for name in _LIST_FIELDS}
    return values | lists | {"defaults": dict(request.defaults)}


def request_record(stored: JsonObject, prompt: Prompt) -> CompareRequest:
    """The request as it was asked."""
    values = stored | {name: tuple(stored.get(name, ())) for name in _LIST_FIELDS}
    return CompareRequest(
        **values,
        context=prompt.context,
        question=prompt.question,
        answer=prompt.answer,
        own_indices=_own_record(prompt.own_indices),
    )


def own_column(own_indices: tuple[ExternalSelection, ...]) -> bytes | None:
    """Kept positions that came with a request."""
    return encode_json(own_to_json(own_indices)) if own_indices else None


def model_record(stored: JsonObject | None) -> ModelInfo | None:
    """The model that served a run, if it was loaded."""
    if stored is None:
        return None
    return ModelInfo(**stored | {"evictable_layers": tuple(stored["evictable_layers"])})


def prompt_columns(prompt: PromptInfo) -> Columns:
    """Columns of `prompts` that the tokenised prompt fills."""
    return {
        "scenario": prompt.scenario,
        "compressed_tokens": prompt.compressed_tokens,
        "context_first": prompt.context_tokens[0],
        "context_end": prompt.context_tokens[1],
        "token_ids": encode_ints(prompt.token_ids),
        "pieces": encode_texts(prompt.pieces),
    }


def prompt_record(row: Prompt) -> PromptInfo | None:
    """The tokenised prompt; None before tokenisation."""
    if row.token_ids is None or row.pieces is None:
        return None
    return PromptInfo(
        scenario=cast("Scenario", row.scenario),
        token_ids=decode_ints(row.token_ids),
        compressed_tokens=cast("int", row.compressed_tokens),
        pieces=decode_texts(row.pieces),
        context_tokens=(cast("int", row.context_first), cast("int", row.context_end)),
    )


def variant_columns(variant: VariantResult) -> Columns:
    """All columns of `variants` except the keys."""
    return {
        "spec": variant.spec,
        "label": variant.label,
        "method": variant.method,
        "critical": variant.critical,
        "params": dict(variant.params),
        "agreement": variant.agreement,
        "first_difference": variant.first_difference,
        "answer_found": variant.answer_found,
        "timings_ms": dict(variant.timings_ms),
        **generation_columns(variant.text, variant.token_ids, variant.token_texts, variant.stopped),
        **(receipt_columns(variant.receipt) if variant.receipt else {}),
        **(perturbation_columns(variant.perturbation) if variant.perturbation else {}),
        "answer_scores": dict(variant.answer_scores),
        **forced_columns(variant.forced_steps),
        **follow_up_columns(variant.follow_ups),
    }


def generation_columns(
    text: str, token_ids: tuple[int, ...], token_texts: tuple[str, ...], stopped: str | None
) -> Columns:
    """Columns of `variants` that generation fills."""
    return {
        "text": text,
        "token_ids": encode_ints(token_ids),
        "token_texts": encode_texts(token_texts),
        "stopped": stopped,
    }


def receipt_columns(receipt: Receipt) -> Columns:
    """Columns of `variants` that selection fills."""
    return {
        "budget_tokens": receipt.budget_tokens,
        "requested_entries": receipt.requested_entries,
        "retained_entries": receipt.retained_entries,
        "cache_bytes": receipt.cache_bytes,
        "full_cache_bytes": receipt.full_cache_bytes,
        "warnings": list(receipt.warnings),
    }


def perturbation_columns(perturbation: Perturbation) -> Columns:
    """Sortable figures of `variants`; NaN becomes null, as SQLite would make it."""
    measured = not np.isnan(perturbation.head_l1).all()
    return {
        "kl": _no_nan(perturbation.kl),
        "final_hidden_l1": _no_nan(perturbation.final_hidden_l1),
        "improved_head_share": perturbation.improved_head_share if measured else None,
    }


def floor_json(floor: RoundingFloor) -> JsonObject:
    """The column `floor` of `runs`."""
    return {"layer_hidden_l1": floor.layer_hidden_l1.tolist(), "kl": floor.kl}


def floor_record(stored: JsonObject | None) -> RoundingFloor | None:
    """Undo `floor_json`."""
    if stored is None:
        return None
    hidden = np.array(stored["layer_hidden_l1"], np.float32)
    return RoundingFloor(layer_hidden_l1=hidden, kl=stored["kl"])


def forced_columns(steps: tuple[ForcedStep, ...]) -> Columns:
    """Candidates of every forced step, each as [token id, text, probability]."""
    plain = [[[astuple(c) for c in side] for side in (s.reference, s.variant)] for s in steps]
    return {"forced_steps": encode_json(plain)}


def follow_up_columns(follow_ups: tuple[FollowUp, ...]) -> Columns:
    """Answers to follow-up questions."""
    return {"follow_ups": encode_json([asdict(item) for item in follow_ups])}


def variant_arrays(variant: VariantResult) -> dict[str, EncodedArray]:
    """Rows of `arrays` of one variant, by name."""
    arrays = retained_arrays(variant.retained) | analysis_arrays(variant.analysis)
    arrays |= held_arrays(variant.held)
    return arrays | (perturbation_arrays(variant.perturbation) if variant.perturbation else {})


def retained_arrays(retained: RetainedSet | None) -> dict[str, EncodedArray]:
    """The kept set; nothing for `full`."""
    return {"retained": encode_retained(retained)} if retained else {}


def held_arrays(held: HeldSeries | None) -> dict[str, EncodedArray]:
    """What a variant held while it generated, where it evicted then."""
    return {} if held is None else encode_held(held)


def analysis_arrays(analysis: Mapping[str, Float32Array]) -> dict[str, EncodedArray]:
    """Measured quantities, under their own names."""
    return {name: encode_floats(array) for name, array in analysis.items()}


def perturbation_arrays(perturbation: Perturbation) -> dict[str, EncodedArray]:
    """The arrays of a perturbation."""
    arrays = {
        "head_l1": perturbation.head_l1,
        "base_head_l1": perturbation.base_head_l1,
        "layer_hidden_l1": perturbation.layer_hidden_l1,
    }
    return {name: encode_floats(array) for name, array in arrays.items() if array is not None}


def variant_record(row: Variant, arrays: Mapping[str, EncodedArray]) -> VariantResult:
    """One variant as its events left it."""
    retained = arrays.get("retained")
    return VariantResult(
        spec=row.spec,
        label=row.label,
        method=row.method,
        critical=row.critical,
        params=row.params,
        retained=decode_retained(retained) if retained else None,
        receipt=_receipt_record(row),
        perturbation=_perturbation_record(row, arrays),
        text=row.text,
        token_ids=decode_ints(row.token_ids),
        token_texts=decode_texts(row.token_texts),
        stopped=cast("Literal['eos', 'length'] | None", row.stopped),
        agreement=row.agreement,
        first_difference=row.first_difference,
        answer_found=row.answer_found,
        timings_ms=row.timings_ms,
        answer_scores=row.answer_scores or {},
        analysis={name: decode_floats(arrays[name]) for name in QUANTITIES if name in arrays},
        forced_steps=_forced_record(row.forced_steps),
        follow_ups=_follow_up_record(row.follow_ups),
        held=decode_held(arrays),
    )


def _own_record(data: bytes | None) -> tuple[ExternalSelection, ...]:
    documents = decode_json(data) if data else []
    return own_from_json([JsonField(each) for each in documents])


def _forced_record(data: bytes | None) -> tuple[ForcedStep, ...]:
    steps = decode_json(data) if data else []
    return tuple(
        ForcedStep(*(tuple(Candidate(*item) for item in side) for side in step)) for step in steps
    )


def _follow_up_record(data: bytes | None) -> tuple[FollowUp, ...]:
    found = decode_json(data) if data else []
    lists = ("token_ids", "token_texts")
    return tuple(FollowUp(**item | {name: tuple(item[name]) for name in lists}) for item in found)


def _receipt_record(row: Variant) -> Receipt | None:
    if row.budget_tokens is None:
        return None
    return Receipt(
        budget_tokens=row.budget_tokens,
        requested_entries=cast("int", row.requested_entries),
        retained_entries=cast("int", row.retained_entries),
        cache_bytes=cast("int", row.cache_bytes),
        full_cache_bytes=cast("int", row.full_cache_bytes),
        warnings=tuple(row.warnings or ()),
    )


def _perturbation_record(row: Variant, arrays: Mapping[str, EncodedArray]) -> Perturbation | None:
    if "head_l1" not in arrays:
        return None
    base = arrays.get("base_head_l1")
    return Perturbation(
        head_l1=decode_floats(arrays["head_l1"]),
        base_head_l1=decode_floats(base) if base else None,
        layer_hidden_l1=decode_floats(arrays["layer_hidden_l1"]),
        kl=math.nan if row.kl is None else row.kl,
    )


def _no_nan(value: float) -> float | None:
    return None if math.isnan(value) else value
