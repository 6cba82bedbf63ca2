"""The result JSON: it comes back equal, and its readings are what pages and commands read."""

import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckv_core.experiment.ablation import ablation, ablation_of
from ckv_core.experiment.evidence import held
from ckv_core.experiment.result_json import MAX_PAIRS, derived_json, to_json
from ckv_core.experiment.sweep import curves, matched_metrics, savings
from ckv_core.records.chain import check_chain, mean_tightness, over_half
from ckv_core.records.codec import from_json, measured_json
from ckv_core.records.events import RunResult
from ckv_core.records.passages import spans_of
from ckv_core.records.run_request import RunRequest
from tests.ckv_core.experiment.test_ablation import result_of
from tests.factories.events import assert_same_result, big_events, folded, small_run
from tests.factories.runs import bare, swept
from tests.factories.strategies import TEXTS, events
from tests.factories.tiny_runs import analysed

SWEEP = RunRequest(
    variants=("snapkv", "snapkv+critical", "adakv"),
    budgets=("64", "128", "512"),
    alphas=("0", "0.25", "0.5"),
)
PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/result_json.md").read_text(
    encoding="utf-8"
)
NOTHING = {name: [] for name in ("evidence", "bounds", "ablation", "curves", "savings")}
HOSTILE = (None, 7, "x", [], [[[]]], {"evidence": {"text": "<img src=x onerror=alert(1)>"}})


def read(result: RunResult, *passages: str) -> dict:
    """Through real JSON, where NaN would fail."""
    return json.loads(json.dumps(derived_json(result, passages), allow_nan=False))


def plain(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def test_evidence_is_what_the_commands_count():
    result = folded(big_events(tokens=80, variants=2))
    text = "Word3 WORD4"
    spans = spans_of(result.prompt, text)
    found, missing = read(result, text, "nowhere", text, " ")["evidence"]
    assert missing == {"text": "nowhere", "spans": [], "variants": []}
    assert (found["text"], found["spans"]) == (text, [[3, 5]]) == (text, [list(spans[0])])
    for at, (row, variant) in enumerate(zip(found["variants"], result.variants, strict=True)):
        each = held(variant, spans, result.model.evictable_layers)
        metrics = {name: getattr(each, name) for name in ("entries", "slots", "whole", "heads")}
        assert row == metrics | {
            "variant": at,
            "share": each.mean,
            "by_chance": each.chance,
            "layer_share": each.per_layer.tolist(),
            "layer_by_chance": each.chance_per_layer.tolist(),
        }


def test_savings_are_those_of_the_sweep_page():
    result = swept(SWEEP)
    lines = {line.first.curve_spec: line for line in curves(result)}
    rows = read(result)["savings"]
    asked = [(metric.key, target) for metric in matched_metrics(result) for target in lines]
    assert sorted((row["metric"], row["target"]) for row in rows) == sorted(asked)
    columns = ("budgets", "outcomes", "saved")
    for row in rows:
        found = [
            (method["spec"], *needed)
            for method in row["methods"]
            for needed in zip(row["target_budgets"], *map(method.get, columns), strict=True)
        ]
        expected = [
            (spec, s.target_budget.amount, s.match.budget, s.match.outcome, s.share)
            for spec, line in lines.items()
            if spec != row["target"]
            for s in savings(line, lines[row["target"]], row["metric"])
        ]
        assert found == expected
    assert {outcome for row in rows for m in row["methods"] for outcome in m["outcomes"]} >= {
        "found",
        "worse",
    }


def test_the_ablation_is_the_one_that_is_shown():
    result = result_of(["full", *(step.spec for step in ablation("snapkv:budget=96"))])
    rows, steps = read(result)["ablation"], ablation_of(result)
    assert len(rows) == len(steps) > 4
    metrics = ("heads", "head_l1", "better_heads", "final_hidden_l1", "kl")
    for row, each in zip(rows, steps, strict=True):
        told = {"variant": each.index, "label": each.step.label, "change": each.step.change}
        assert row == told | {name: getattr(each, name) for name in metrics}


def test_bounds_of_a_real_run_are_counted_as_the_pages_count_them():
    result = analysed("llama", "regular")
    rows = read(result, "the")["bounds"]
    assert [row["variant"] for row in rows] == list(range(1, len(result.variants)))
    for row, variant in zip(rows, result.variants[1:], strict=True):
        check = check_chain(variant)
        counts = {name: getattr(check, name) for name in ("heads", "covered", "violations")}
        assert row.items() >= counts.items()
        assert row["sigma_over_half"] == over_half(variant, "sigma_stage1")
        assert row["oracle_over_half"] == over_half(variant, "sigma_oracle")
        assert row["sigma_over_half"] <= row["oracle_over_half"]
        assert row["tightness"] == mean_tightness(variant)
        assert row["group_tightness"] == mean_tightness(variant, 2)


def test_a_run_with_nothing_to_read_says_so():
    plain_run = folded(big_events(tokens=16, variants=2))
    full_only = replace(plain_run, variants=[bare("full")])
    for result in (RunResult(), plain_run, full_only, replace(full_only, kind="sweep")):
        assert read(result) == NOTHING
    (asked,) = read(full_only, "word3")["evidence"]
    assert (asked["spans"], asked["variants"]) == ([[3, 4]], [])
    assert read(RunResult(), "word3") == NOTHING


@given(events(), st.lists(TEXTS, max_size=3), st.sampled_from(["compare", "sweep"]))
@example([], [], "compare")
def test_any_run_is_written_and_comes_back_the_same(stream, passages, kind):
    result = replace(folded(stream), kind=kind)
    written = json.loads(json.dumps(to_json(result, passages), allow_nan=False))
    again = from_json(written)
    assert_same_result(again, result)
    assert to_json(again, passages) == written
    assert measured_json(again) | {"readings": written["readings"]} == written


@pytest.mark.parametrize("hostile", HOSTILE)
def test_readings_are_never_trusted(hostile):
    honest = small_run()
    assert_same_result(from_json(honest | {"readings": hostile}), from_json(honest))
    assert to_json(from_json(honest | {"readings": hostile}))["readings"] == NOTHING


def test_an_imported_sweep_that_nobody_can_parse_is_exported():
    data = json.loads(json.dumps(to_json(swept(SWEEP))))
    for at, variant in enumerate(data["variants"]):
        variant["spec"] = f"no such: method,=,{at}"
    result = from_json(data)
    found = read(result, "w3")
    assert found["ablation"] == []
    assert len(found["curves"]) == len(curves(result))


def test_forged_budgets_and_figures_break_no_export():
    whole = swept(SWEEP)
    points = whole.variants[1:]
    none_kept = [replace(v, receipt=replace(v.receipt, budget_tokens=0)) for v in points]
    assert read(replace(whole, variants=none_kept))["savings"] == []
    endless = [
        replace(v, perturbation=replace(v.perturbation, kl=value))
        for v, value in zip(points, [math.inf, -math.inf, math.nan] * 5, strict=True)
    ]
    found = read(replace(whole, variants=endless))
    assert {"inf", "-inf", None} == {v for row in found["curves"] for v in row["metrics"]["kl"]}


@pytest.mark.parametrize(("alphas", "budgets"), [(15, 15), (126, 2), (254, 1), (3, 63)])
def test_the_largest_sweeps_stay_small(alphas, budgets):
    result = swept(
        RunRequest(
            variants=("snapkv+critical", "snapkv"),
            budgets=tuple(str(64 + 8 * at) for at in range(budgets)),
            alphas=tuple(str(at / 1000) for at in range(alphas)),
        )
    )
    start = time.process_time()
    found = derived_json(result)
    assert time.process_time() - start < 5
    pairs = {(row["target"], each["spec"]) for row in found["savings"] for each in row["methods"]}
    assert len(pairs) == (alphas * (alphas + 1) if alphas < 16 else len(pairs)) <= MAX_PAIRS
    assert found["savings"][0]["target"] == "snapkv"
    assert len(json.dumps(found)) < 3 * 2**20


def documented(text: str, start: str = "") -> set[str]:
    """Members in the first column of tables, of those rows whose first one begins like this."""
    told: set[str] = set()
    for row in re.findall(rf"^\| (`{re.escape(start)}.*?) \|", text, re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", row)
        told |= {first, *(first.rpartition(".")[0] + each for each in others)}
    return told


def keys_of(value: object, path: str) -> set[str]:
    if isinstance(value, list):
        return set().union(*(keys_of(item, path) for item in value))
    if not isinstance(value, dict) or path.endswith("metrics"):
        return set()
    inner = (keys_of(item, f"{path}.{key}") for key, item in value.items())
    return {f"{path}.{key}" for key in value}.union(*inner)


def test_every_reading_is_documented_and_nothing_else_is():
    lab = analysed("llama", "regular")
    runs = [
        read(swept(SWEEP)),
        read(lab, lab.prompt.pieces[41]),
        read(result_of(["full", *(step.spec for step in ablation("snapkv:budget=96"))])),
    ]
    assert not [name for name in NOTHING if not any(each[name] for each in runs)]
    written = set().union(*(keys_of(each, "readings") for each in runs))
    assert documented(PAGE, "readings.") == written
