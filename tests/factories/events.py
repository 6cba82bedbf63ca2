"""Runs as events and as JSON: what they add up to, one of a fixed size, when two are equal."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ckv_core.records.codec import to_json
from ckv_core.records.events import (
    FollowUpsAnswered,
    Generated,
    RunEvent,
    RunFinished,
    RunPrepared,
    RunResult,
    VariantAnalysed,
    VariantFinished,
    VariantMeasured,
    VariantSelected,
)
from ckv_core.records.records import RetainedSet, VariantResult
from tests.factories.runs import measured, model_info, prompt_info, receipt


def folded(stream: Iterable[RunEvent]) -> RunResult:
    """What events add up to."""
    result = RunResult()
    for event in stream:
        result.apply(event)
    return result


def without_times(result: RunResult) -> dict[str, Any]:
    """As JSON; times and memory are measured anew in every run."""
    data = to_json(result)
    data.pop("memory")
    for part in (data, *data["variants"]):
        part.pop("timings_ms")
        part.pop("time", None)
    return data


def events_of(result: RunResult) -> list[RunEvent]:
    """Events that add up to a finished run."""
    assert result.model is not None
    assert result.prompt is not None
    names = ("spec", "label", "method", "critical")
    blank = [VariantResult(**{n: getattr(v, n) for n in names}) for v in result.variants]
    events: list[RunEvent] = [
        RunPrepared(result.model, result.prompt, tuple(blank), result.environment, result.kind)
    ]
    for at, found in enumerate(result.variants):
        if found.receipt:
            events.append(VariantSelected(at, found.params, found.retained, found.receipt, {}))
        if found.perturbation:
            events.append(VariantMeasured(at, found.perturbation))
        if found.analysis or found.sampled_texts:
            more = (found.forced_steps, found.sampled_texts)
            events.append(VariantAnalysed(at, found.analysis, *more))
        if found.follow_ups:
            events.append(FollowUpsAnswered(at, found.follow_ups))
        judged = (found.agreement, found.first_difference, found.answer_found)
        if found.agreement is not None:
            events.append(VariantFinished(at, *judged))
    written = ("text", "token_ids", "token_texts", "stopped")
    events.append(Generated(*(tuple(getattr(v, n) for v in result.variants) for n in written)))
    return [*events, RunFinished(result.timings_ms)]


def big_events(tokens: int = 8000, variants: int = 8) -> list[RunEvent]:
    """A run of SmolLM2's shape: 30 layers, 3 KV heads, 9 query heads; 64 tokens each."""
    rng = np.random.default_rng(0)
    shape = {"query_heads": 9, "kv_heads": 3, "head_dim": 64, "context_limit": 8192}
    prompt = prompt_info(
        [f" word{at % 997}" for at in range(tokens)],
        token_ids=tuple(rng.integers(0, 49152, tokens).tolist()),
        context_tokens=(tokens // 10, tokens - tokens // 10),
    )
    rows = tuple(
        VariantResult(
            spec=f"snapkv:budget={256 + at}", label="SnapKV", method="snapkv", critical=bool(at % 2)
        )
        for at in range(variants)
    )
    model = model_info(30, name="SmolLM2-135M-Instruct", **shape)
    stream: list[RunEvent] = [RunPrepared(model, prompt, rows, {"python": "3.11"})]
    for index in range(variants):
        # A 10 % budget in random places is the worst case for compression.
        retained = RetainedSet.from_mask(rng.random((30, 3, tokens)) < 0.1)
        said = receipt(
            tokens // 10,
            int(retained.mask().sum()),
            requested_entries=90 * tokens // 10,
            cache_bytes=10**6,
            full_cache_bytes=10**7,
        )
        heads = rng.random((30, 9), np.float32)
        stream += [
            VariantSelected(index, {"budget": 800}, retained, said, {"select": 1.0}),
            VariantMeasured(index, measured(heads, rng.random(30, np.float32), 0.1, heads * 2)),
        ]
    texts = tuple(f" token{i}" for i in range(64))
    many = (("".join(texts),), (tuple(range(64)),), (texts,), ("length",))
    stream.append(Generated(*(each * variants for each in many)))
    stream += [VariantFinished(index, 1.0, None, True) for index in range(variants)]
    return [*stream, RunFinished({"prefill": 21_000.0})]


def assert_same_result(left: RunResult, right: RunResult) -> None:
    """Equal in every field; NaN equals NaN, and text that prints alike must be alike."""
    assert _plain(left) == _plain(right)


def _plain(value: object) -> object:
    """What compares as it reads: NaN equals NaN, and 1 is not 1.0."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, [repr(each) for each in value.ravel().tolist()]
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [_plain(each) for each in value]
    return repr(value)


def small_run() -> dict:
    """Two variants, `full` first; 30 layers x 3 KV heads, 16 prompt tokens; through real JSON."""
    result = folded(big_events(tokens=16, variants=2))
    data = json.loads(json.dumps(to_json(result), allow_nan=False))
    data["variants"][0] |= {"method": "full", "retained": None}
    data["variants"][0]["perturbation"] = {
        "head_l1": None,
        "layer_hidden_l1": None,
        "final_hidden_l1": None,
    }
    data["variants"][1]["retained"][7][2] = [1, 5]
    for variant in data["variants"]:
        variant["memory"] = {"prefill_peak": 7, "read": [8, 16], "held": [3, 4]}
    data["memory"] = {"total": 5}
    data["floor"] = {"layer_hidden_l1": [0.5] * 30, "final_hidden_l1": 0.5, "kl": 0.25}
    data["variants"][1] |= {
        "held": {
            "entries": [9, 8],
            "cache_bytes": [90, 80],
            "evicted": [[1, 0, 0, 3], [1, 0, 2, 3]],
        },
        "answer_scores": {"token_f1": 0.5},
        "analysis": {
            "theta": [[1.0] * 9 for _ in range(30)],
            "head_alpha": [[0.25] * 3 for _ in range(30)],
            "hidden_l2": [2.0] * 30,
            "normed_l1": [3.0],
            "forced_kl": [0.1, None],
            "forced_top1": [1.0, 0.0],
        },
        "forced_steps": [{"reference": [[1, "a", 0.5]], "variant": []} for _ in range(2)],
        "follow_ups": [
            {
                "question": "And?",
                "text": "ab",
                "token_ids": [1, 2],
                "token_texts": ["a", "b"],
                "stopped": "eos",
            }
        ],
        "sampled_texts": [{"text": "ab", "stopped": "length", "answer_found": False}],
    }
    return data
