"""Reads a result JSON that may be hand-made or hostile; result_json.py writes them."""

from itertools import pairwise
from typing import Literal, cast

import numpy as np

from ckv_core.methods.parameters import ParameterValue
from ckv_core.request.compare_request import (
    KINDS,
    MAX_NEW_TOKENS,
    MAX_SWEEP_POINTS,
    MAX_TEXT_CHARS,
    MAX_VARIANTS,
    SCENARIOS,
    Kind,
    Scenario,
)
from ckv_core.results.diagnostics_json import (
    MAX_FLOAT32,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_TOKEN_ID,
    read_analysis,
    read_float,
    read_float32,
    read_follow_ups,
    read_forced_steps,
    read_heads,
    read_scores,
)
from ckv_core.results.events import RunResult
from ckv_core.results.held_json import read_held
from ckv_core.results.records import (
    ModelInfo,
    Perturbation,
    PromptInfo,
    Receipt,
    RetainedSet,
    RoundingFloor,
    VariantResult,
)
from ckv_core.runtime.json_fields import JsonField

SCHEMA = 1
MAX_SLOTS = 2**29  # layers x KV heads x prompt tokens; a mask takes a byte for each
MAX_ALL_SLOTS = 2**30  # of all variants; each keeps a bit of them
_MAX_COUNT = 2**62
_WORD = r"[\w.:-]{1,32}"


def from_json(data: object) -> RunResult:
    """The run in a decoded result JSON; members that the format does not know are passed over.

    Raises:
        ConfigError: something is missing, of the wrong type, out of range or inconsistent; the
            sentence names its path.
    """
    root = JsonField(data)
    if type(root["schema"].value) is not int or root["schema"].value != SCHEMA:
        root["schema"].fail(f"schema {SCHEMA} is expected")
    kind = root["kind"].maybe(lambda item: item.one_of(*KINDS)) or "compare"
    most = MAX_SWEEP_POINTS if kind == "sweep" else MAX_VARIANTS
    fields = root["variants"].items(most)
    model = None if root["model"].absent else _model(root["model"], fields)
    prompt = root["prompt"].maybe(_prompt)
    return RunResult(
        model=model,
        prompt=prompt,
        variants=_variants(root, fields, model, prompt),
        environment={key: item.text(500) for key, item in root["environment"].members(64).items()},
        timings_ms=_timings(root["timings_ms"]),
        finished=root["finished"].absent or root["finished"].boolean(),
        kind=cast("Kind", kind),
        memory=root["memory"].maybe(_memory) or {},
        floor=None if model is None else root["floor"].maybe(lambda item: _floor(item, model)),
    )


def _model(field: JsonField, variants: list[JsonField]) -> ModelInfo:
    layers = field["layers"].integer(1, MAX_LAYERS)
    query_heads = field["query_heads"].integer(1, MAX_HEADS)
    kv_heads = field["kv_heads"].integer(1, query_heads)
    if query_heads % kv_heads:
        field["kv_heads"].fail(f"a divisor of the {query_heads} query heads is expected")
    return ModelInfo(
        name=field["name"].text(500),
        sha256=field["sha256"].text(200),
        layers=layers,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=field["head_dim"].integer(1, 65_536),
        dtype=field["dtype"].text(32, _WORD),
        device=field["device"].text(32, _WORD),
        evictable_layers=_evictable_layers(field, variants, layers),
        context_limit=field["context_limit"].maybe(lambda item: item.integer(0, _MAX_COUNT)) or 0,
    )


def _evictable_layers(model: JsonField, variants: list[JsonField], layers: int) -> tuple[int, ...]:
    # Without the list: the layers of the first kept set that are not null, or else all.
    field = model["evictable_layers"]
    if not field.absent:
        return _ascending(field, layers)
    for variant in variants:
        if not variant["retained"].absent:
            rows = variant["retained"].items(layers, layers)
            return tuple(layer for layer, row in enumerate(rows) if not row.absent)
    return tuple(range(layers))


def _prompt(field: JsonField) -> PromptInfo:
    token_ids = field["token_ids"].integers(0, MAX_TOKEN_ID, MAX_TEXT_CHARS)
    tokens = field["tokens"].integer(len(token_ids), len(token_ids))
    compressed = field["compressed_tokens"].integer(0, tokens)
    pieces = field["pieces"].maybe(lambda item: item.texts(MAX_TEXT_CHARS, tokens))
    context = (0, compressed)
    if not field["context_tokens"].absent:
        first, end = field["context_tokens"].items(2, 2)
        start = first.integer(0, tokens)
        context = (start, end.integer(start, tokens))
    return PromptInfo(
        scenario=cast("Scenario", field["scenario"].one_of(*SCENARIOS)),
        token_ids=token_ids,
        compressed_tokens=compressed,
        pieces=("",) * tokens if pieces is None else pieces,
        context_tokens=context,
    )


def _variants(
    root: JsonField,
    fields: list[JsonField],
    model: ModelInfo | None,
    prompt: PromptInfo | None,
) -> list[VariantResult]:
    if model is None or prompt is None:
        root["variants"].items(0, 0)
        return []
    slots = model.layers * model.kv_heads * prompt.compressed_tokens
    if slots > MAX_SLOTS:
        root["prompt"]["compressed_tokens"].fail(
            f"layers x KV heads x compressed tokens of at most {MAX_SLOTS} are expected"
        )
    if slots * sum(not field["retained"].absent for field in fields) > MAX_ALL_SLOTS:
        root["variants"].fail(f"kept sets of at most {MAX_ALL_SLOTS} bits together are expected")
    return [_variant(field, model, prompt) for field in fields]


def _variant(field: JsonField, model: ModelInfo, prompt: PromptInfo) -> VariantResult:
    positions = prompt.compressed_tokens
    token_ids = field["token_ids"].integers(0, MAX_TOKEN_ID, MAX_NEW_TOKENS)
    count = len(token_ids)
    stopped = field["stopped"].maybe(lambda item: item.one_of("eos", "length"))
    analysis = field["analysis"].maybe(lambda item: read_analysis(item, model)) or {}
    return VariantResult(
        spec=field["spec"].text(1000),
        label=field["label"].text(200),
        method=field["method"].text(64, "[a-z0-9_]{1,64}"),
        critical=field["critical"].boolean(),
        params={key: _parameter(item) for key, item in field["params"].members(64).items()},
        retained=field["retained"].maybe(lambda item: _retained(item, model, positions)),
        receipt=field["receipt"].maybe(_receipt),
        perturbation=field["perturbation"].maybe(lambda item: _perturbation(item, model)),
        text=field["text"].text(MAX_TEXT_CHARS),
        token_ids=token_ids,
        token_texts=field["token_texts"].maybe(lambda item: item.texts(MAX_TEXT_CHARS, count))
        or (),
        stopped=cast("Literal['eos', 'length'] | None", stopped),
        agreement=field["agreement"].maybe(lambda item: item.number(0, 1)),
        first_difference=field["first_difference"].maybe(
            lambda item: item.integer(0, MAX_NEW_TOKENS)
        ),
        answer_found=field["answer_found"].maybe(JsonField.boolean),
        timings_ms=_timings(field["timings_ms"]),
        answer_scores=field["answer_scores"].maybe(read_scores) or {},
        analysis=analysis,
        forced_steps=field["forced_steps"].maybe(lambda item: read_forced_steps(item, analysis))
        or (),
        follow_ups=field["follow_ups"].maybe(read_follow_ups) or (),
        held=field["held"].maybe(lambda item: read_held(item, model, prompt.tokens)),
    )


def _receipt(field: JsonField) -> Receipt:
    def count(name: str) -> int:
        return field[name].integer(0, _MAX_COUNT)

    return Receipt(
        budget_tokens=count("budget_tokens"),
        requested_entries=count("requested_entries"),
        retained_entries=count("retained_entries"),
        cache_bytes=count("cache_bytes"),
        full_cache_bytes=count("full_cache_bytes"),
        warnings=tuple(item.text(2000) for item in field["warnings"].items(100)),
    )


def _retained(field: JsonField, model: ModelInfo, positions: int) -> RetainedSet:
    mask = np.ones((model.layers, model.kv_heads, positions), np.bool_)
    for layer, row in enumerate(field.items(MAX_LAYERS, model.layers)):
        if layer not in model.evictable_layers:
            if not row.absent:
                row.fail("null is expected, as this layer is not evictable")
            continue
        for head, kept in enumerate(row.items(MAX_HEADS, model.kv_heads)):
            mask[layer, head] = False
            mask[layer, head, list(_ascending(kept, positions))] = True
    return RetainedSet.from_mask(mask)


def _perturbation(field: JsonField, model: ModelInfo) -> Perturbation | None:
    if field["head_l1"].absent:
        return None
    hidden = field["layer_hidden_l1"].items(MAX_LAYERS, model.layers)
    measured = Perturbation(
        head_l1=read_heads(field["head_l1"], model.layers, model.query_heads),
        base_head_l1=field["base_head_l1"].maybe(
            lambda item: read_heads(item, model.layers, model.query_heads)
        ),
        layer_hidden_l1=np.array([read_float32(item) for item in hidden], np.float32),
        kl=read_float(field["kl"], 1e300),
    )
    _check_final(field, measured.final_hidden_l1)
    return measured


def _floor(field: JsonField, model: ModelInfo) -> RoundingFloor:
    hidden = field["layer_hidden_l1"].items(MAX_LAYERS, model.layers)
    floor = RoundingFloor(
        layer_hidden_l1=np.array([item.number(0, MAX_FLOAT32) for item in hidden], np.float32),
        kl=field["kl"].number(0),
    )
    _check_final(field, floor.final_hidden_l1)
    return floor


def _check_final(field: JsonField, last: float) -> None:
    final = field["final_hidden_l1"].maybe(read_float32)
    if final is not None and not np.isclose(final, last, rtol=1e-3, equal_nan=True):
        field["final_hidden_l1"].fail("the last value of layer_hidden_l1 is expected")


def _ascending(field: JsonField, end: int) -> tuple[int, ...]:
    values = field.integers(0, end - 1, end)
    if not all(left < right for left, right in pairwise(values)):
        field.fail("an ascending array is expected")
    return values


def _timings(field: JsonField) -> dict[str, float]:
    return {key: item.number(0) for key, item in field.members(64).items()}


def _memory(field: JsonField) -> dict[str, int]:
    return {key: item.integer(0, _MAX_COUNT) for key, item in field.members(64).items()}


def _parameter(field: JsonField) -> ParameterValue:
    if isinstance(field.value, str):
        return field.text(200)
    if isinstance(field.value, int):
        return field.integer(-(2**53), 2**53)
    return field.number()
