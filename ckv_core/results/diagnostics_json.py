"""The diagnostics's part of the result JSON: analysis, forced steps and follow-ups, both ways."""

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np

from ckv_core.request.compare_request import MAX_FOLLOW_UPS, MAX_NEW_TOKENS, MAX_TEXT_CHARS
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import (
    Candidate,
    Float32Array,
    FollowUp,
    ForcedStep,
    ModelInfo,
    VariantResult,
)
from ckv_core.runtime.json_fields import JsonField

MAX_TOKEN_ID = 2**31 - 1
MAX_HEADS = 1024
MAX_LAYERS = 1024
MAX_CANDIDATES = 64
MAX_SCORES = 16
MAX_TOKEN_CHARS = 10_000
MAX_FLOAT32 = float(np.finfo(np.float32).max)


# --- writing ----------------------------------------------------------------------------


def diagnostics_json(variant: VariantResult) -> dict[str, Any]:
    """Members of one variant; arrays by quantity name, one row per layer where heads differ."""
    return {
        "answer_scores": dict(variant.answer_scores),
        "analysis": {name: array_json(array) for name, array in variant.analysis.items()},
        "forced_steps": [
            {
                "reference": _candidates_json(step.reference),
                "variant": _candidates_json(step.variant),
            }
            for step in variant.forced_steps
        ],
        "follow_ups": [
            {
                "question": item.question,
                "text": item.text,
                "token_ids": list(item.token_ids),
                "token_texts": list(item.token_texts),
                "stopped": item.stopped,
                "agreement": item.agreement,
                "first_difference": item.first_difference,
            }
            for item in variant.follow_ups
        ],
    }


def array_json(array: Float32Array) -> list[Any]:
    """Plain lists; a row of nothing but NaN is null, as in a layer that is not evictable."""
    if array.ndim == 1:
        return [number_json(value) for value in array.tolist()]
    return [None if np.isnan(row).all() else array_json(row) for row in array]


def number_json(value: float) -> float | str | None:
    """Null for NaN; infinities as text."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def _candidates_json(candidates: tuple[Candidate, ...]) -> list[list[Any]]:
    return [[item.token_id, item.text, item.probability] for item in candidates]


# --- reading ----------------------------------------------------------------------------


def read_analysis(field: JsonField, model: ModelInfo) -> dict[str, Float32Array]:
    """Arrays of known names; sizes as the model has them, one length for all that have steps."""
    arrays = {}
    for name, item in field.members(len(QUANTITIES)).items():
        if name not in QUANTITIES:
            item.fail("the name of a known quantity is expected")
        arrays[name] = _read_quantity(item, QUANTITIES[name].axes, model)
    lengths = {len(array) for name, array in arrays.items() if QUANTITIES[name].axes == "step"}
    if len(lengths) > 1:
        field.fail("one number of steps for all quantities is expected")
    return arrays


def read_heads(field: JsonField, layers: int, heads: int) -> Float32Array:
    """[layers, heads]; NaN where the file has null."""
    values = np.full((layers, heads), np.nan, np.float32)
    for layer, row in enumerate(field.items(MAX_LAYERS, layers)):
        if not row.absent:
            values[layer] = [read_float32(item) for item in row.items(MAX_HEADS, heads)]
    return values


def read_float32(field: JsonField) -> float:
    """A number that float32 holds; NaN for null."""
    return read_float(field, MAX_FLOAT32)


def read_float(field: JsonField, most: float) -> float:
    """A number from -most to most, `inf` or `-inf`; NaN for null."""
    if field.absent:
        return math.nan
    if isinstance(field.value, str):
        return float(field.one_of("inf", "-inf"))
    return field.number(-most, most)


def read_forced_steps(
    field: JsonField, analysis: Mapping[str, Float32Array]
) -> tuple[ForcedStep, ...]:
    """As many steps as the measured arrays have; or none."""
    items = field.items(MAX_NEW_TOKENS)
    lengths = [len(array) for name, array in analysis.items() if QUANTITIES[name].axes == "step"]
    if items and lengths and len(items) != lengths[0]:
        field.fail(f"{lengths[0]} steps are expected, as in analysis")
    return tuple(
        ForcedStep(_read_candidates(item["reference"]), _read_candidates(item["variant"]))
        for item in items
    )


def read_follow_ups(field: JsonField) -> tuple[FollowUp, ...]:
    """Answers to follow-up questions."""
    return tuple(_read_follow_up(item) for item in field.items(MAX_FOLLOW_UPS))


def read_scores(field: JsonField) -> dict[str, float]:
    """Scores of the answer, 0 to 1, by name."""
    return {key: item.number(0, 1) for key, item in field.members(MAX_SCORES).items()}


def _read_quantity(field: JsonField, axes: str, model: ModelInfo) -> Float32Array:
    heads = {"head": model.query_heads, "kv_head": model.kv_heads}
    if axes in heads:
        return read_heads(field, model.layers, heads[axes])
    length = {"layer": model.layers, "model": 1}.get(axes)
    items = field.items(MAX_NEW_TOKENS if axes == "step" else MAX_LAYERS, length)
    return np.array([read_float32(item) for item in items], np.float32)


def _read_candidates(field: JsonField) -> tuple[Candidate, ...]:
    found = []
    for item in field.items(MAX_CANDIDATES):
        token_id, text, probability = item.items(3, 3)
        found.append(
            Candidate(
                token_id.integer(0, MAX_TOKEN_ID),
                text.text(MAX_TOKEN_CHARS),
                probability.number(0, 1),
            )
        )
    return tuple(found)


def _read_follow_up(field: JsonField) -> FollowUp:
    token_ids = field["token_ids"].integers(0, MAX_TOKEN_ID, MAX_NEW_TOKENS)
    return FollowUp(
        question=field["question"].text(MAX_TEXT_CHARS),
        text=field["text"].text(MAX_TEXT_CHARS),
        token_ids=token_ids,
        token_texts=field["token_texts"].texts(MAX_TEXT_CHARS, len(token_ids)),
        stopped=cast("Literal['eos', 'length']", field["stopped"].one_of("eos", "length")),
        agreement=field["agreement"].maybe(lambda item: item.number(0, 1)),
        first_difference=field["first_difference"].maybe(
            lambda item: item.integer(0, MAX_NEW_TOKENS)
        ),
    )
