"""Laws of the layer-wise hidden L1 over several prompts, and of many intervals drawn at once."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from ckv_core.analysis.aggregate import hidden_by_layer, reduction_by_layer
from ckv_core.analysis.aggregate_runs import join
from ckv_core.analysis.intervals import MIN_PROMPTS, mean_ends, mean_interval
from ckv_core.analysis.means_json import means_json
from ckv_core.results.events import RunResult
from tests.factories.printed import printed
from tests.factories.runs import array, measured, on_prompt, variant

PLAIN = "snapkv:budget=64,window=16"
CRITICAL = "snapkv+critical:budget=64,window=16,alpha=0.5"
OTHER = "snapkv:budget=32,window=16"  # another budget, so no base


def run(prompt: int, **layers: list[float]) -> RunResult:
    """Variants with these hidden L1 by layer on one prompt."""
    specs = {"plain": PLAIN, "critical": CRITICAL, "other": OTHER}
    moved = measured(array([1, 1, 1, 1]), 0, 0)
    made = [
        variant(specs[name], replace(moved, layer_hidden_l1=np.array(values, np.float32)))
        for name, values in layers.items()
    ]
    return on_prompt(prompt, variant("full"), *made)


def by_spec(results: list[RunResult]):
    variants = join(results).variants
    return {each.spec: each for each in variants}, variants


def test_rows_that_are_drawn_together_have_the_ends_that_each_has_alone():
    rows = np.random.default_rng(5).normal(10, 3, (7, MIN_PROMPTS))
    rows[2] = 4.0  # nothing varies
    low, high = mean_ends(rows)
    for at, row in enumerate(rows):
        alone = mean_interval(row.tolist())
        assert (low[at], high[at]) == pytest.approx((alone.low, alone.high), rel=1e-3)
    assert (low[2], high[2]) == (4, 4)


def test_each_layer_has_its_own_mean_over_the_prompts_and_its_interval():
    lines = np.random.default_rng(2).uniform(1, 9, (MIN_PROMPTS, 3)).astype(np.float32)
    found, _ = by_spec([run(at, plain=line.tolist()) for at, line in enumerate(lines)])
    layers = hidden_by_layer(found[PLAIN])
    assert layers is not None
    for at, each in enumerate(layers):
        alone = mean_interval(lines[:, at].tolist())
        assert (each.mean, each.n) == (pytest.approx(alone.mean), MIN_PROMPTS)
        assert (each.low, each.high) == pytest.approx((alone.low, alone.high), rel=1e-3)
    assert hidden_by_layer(found["full"]) is None


def test_a_reduction_is_base_minus_variant_of_the_same_prompts():
    results = [
        run(0, plain=[5, 9], critical=[4, 7], other=[1, 1]),
        run(1, critical=[100, 100], other=[1, 1]),  # without its base
        run(2, other=[1, 1], plain=[3, 3]),
        run(2, critical=[1, 4]),  # in another run of that prompt
    ]
    found, variants = by_spec(results)
    layers = reduction_by_layer(found[CRITICAL], variants)
    assert layers is not None
    assert [(each.mean, each.low, each.n) for each in layers] == [(1.5, None, 2), (0.5, None, 2)]
    assert reduction_by_layer(found[PLAIN], variants) is None
    assert reduction_by_layer(found["full"], variants) is None
    without = [each for each in variants if each.spec != PLAIN]
    assert reduction_by_layer(found[CRITICAL], without) is None


def test_a_prompt_with_a_layer_that_is_not_known_has_no_part():
    results = [run(0, plain=[1, 2]), run(1, plain=[3, np.nan]), run(2, plain=[5, 6])]
    found, _ = by_spec(results)
    layers = hidden_by_layer(found[PLAIN])
    assert layers is not None
    assert [(each.mean, each.n) for each in layers] == [(3, 2), (4, 2)]


def test_the_file_of_means_has_an_array_per_layer():
    results = [run(at, plain=[5 + at, 9], critical=[4, 7]) for at in range(2)]
    found = json.loads(json.dumps(means_json(results), allow_nan=False))
    full, plain, critical = found["variants"]
    assert (full["layer_hidden_l1"], full["layer_reduction"]) == (None, None)
    assert plain["layer_hidden_l1"] == {
        "mean": [5.5, 9],
        "low": [None, None],
        "high": [None, None],
        "n": 2,
    }
    assert plain["layer_reduction"] is None
    assert critical["layer_reduction"]["mean"] == [1.5, 2]
    many = [run(at, plain=[5 + at, 9]) for at in range(MIN_PROMPTS)]
    layers = means_json(many)["variants"][1]["layer_hidden_l1"]
    alone = mean_interval([5.0 + at for at in range(MIN_PROMPTS)])
    assert (layers["low"], layers["high"]) == ([alone.low, 9], [alone.high, 9])


def test_analyse_prints_the_layers(monkeypatch, capsys, tmp_path):
    path = tmp_path / "context.txt"
    path.write_text("text", encoding="utf-8")
    lines = [float(at) for at in range(9)]
    results = [run(at, plain=[2 * x for x in lines], critical=lines) for at in range(2)]
    out = printed(monkeypatch, capsys, ["analyse", *["--context", str(path)] * 2], *results)
    first, second = (
        part.splitlines()
        for part in out.split("\n\n")
        if part.startswith("hidden L1 after a layer")
    )
    shown = [f"layer {at}" for at in (0, 2, 4, 6, 8)]
    assert re.split(r" {2,}", first[1]) == ["variant", *shown, "n"]
    assert first[2].split() == [PLAIN, "0", "4", "8", "12", "16", "2"]
    assert second[0] == ("hidden L1 after a layer, base minus CriticalKV; of 9 layers, from 0 on")
    assert [row.split() for row in second[2:]] == [[CRITICAL, "0", "2", "4", "6", "8", "2"]]
