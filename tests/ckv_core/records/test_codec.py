"""The result JSON: nothing wrong gets in, a refusal names the place, and older files are read."""

import json
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckv_core.errors import ConfigError
from ckv_core.records.codec import from_json, to_json
from ckv_core.records.events import RunResult
from tests.factories.events import assert_same_result, big_events, folded, small_run
from tests.factories.hostile import JUNK, forged, paths
from tests.factories.strategies import events

BASE = small_run()
WRONG = [
    ("schema", 2),
    ("environment", None),
    ("timings_ms.prefill", -1),
    ("timings_ms.prefill", 10**400),
    ("model.kv_heads", 10),
    ("model.device", "cpu\x00"),
    ("model.name", "\ud800"),
    ("model.evictable_layers", [1, 0]),
    ("model.evictable_layers[3]", 30),
    ("prompt.tokens", 17),
    ("prompt.compressed_tokens", 17),
    ("prompt.token_ids[3]", 2**31),
    ("prompt.pieces", []),
    ("prompt.context_tokens", [3]),
    ("prompt.context_tokens[1]", 0),
    ("variants[1].method", "<img>"),
    ("variants[1].params.budget", None),
    ("variants[1].params.budget", math.inf),
    ("variants[1].params.budget", 2**60),
    ("variants[1].retained", [[]]),
    ("variants[1].retained[7]", [[0], [1]]),
    ("variants[1].retained[7][2]", [1, 1]),
    ("variants[1].retained[7][2]", list(range(17))),
    ("variants[1].retained[7][2][0]", 16),
    ("variants[1].retained[7][2][0]", 0.0),
    ("model.kv_heads", 2),
    ("variants[1].receipt.warnings", ["x"] * 101),
    ("variants[1].token_ids", [0] * 1025),
    ("variants[1].token_texts", ["a"]),
    ("variants[1].agreement", 1.5),
    ("variants[1].perturbation.head_l1[0]", [1.0]),
    ("variants[1].perturbation.head_l1[0][8]", "NaN"),
    ("variants[1].perturbation.head_l1[0][8]", 1e39),
    ("variants[1].perturbation.layer_hidden_l1", None),
    ("variants[1].perturbation.final_hidden_l1", 1e9),
    ("floor.kl", -0.5),
    ("floor.layer_hidden_l1", [0.5]),
    ("floor.layer_hidden_l1[3]", -1.0),
    ("floor.final_hidden_l1", 9.0),
    ("variants[1].answer_scores.token_f1", 1.5),
    ("variants[1].answer_scores", {f"s{i}": 1 for i in range(17)}),
    ("variants[1].analysis.unheard_of", [1]),
    ("variants[1].analysis.theta", [[1.0] * 9]),
    ("variants[1].analysis.theta[3]", [1.0] * 8),
    ("variants[1].analysis.theta[3][0]", 1e39),
    ("variants[1].analysis.head_alpha[3]", [0.25] * 9),
    ("variants[1].analysis.hidden_l2", [1.0]),
    ("variants[1].analysis.normed_l1[0]", "NaN"),
    ("variants[1].analysis", {"forced_kl": [1.0], "forced_top1": []}),
    ("variants[1].analysis", {"forced_kl": [0] * 1025}),
    ("variants[1].forced_steps", [{"reference": [], "variant": []}]),
    ("variants[1].forced_steps[0].reference", [[0, "", 0]] * 65),
    ("variants[1].forced_steps[0].reference[0]", [1, "a"]),
    ("variants[1].forced_steps[0].reference[0][2]", 1.1),
    ("variants[1].held.evicted[0]", [1, 0, 0]),
    ("variants[1].held.evicted[0][0]", 2),
    ("variants[1].held.evicted[0][2]", 3),
    ("variants[1].held.evicted", [[1, 0, 2, 3], [1, 0, 0, 3]]),
    ("variants[1].held.evicted", [[0, 0, 2, 3], [1, 0, 2, 3]]),
    ("variants[1].follow_ups", [{}] * 9),
    ("variants[1].follow_ups[0].token_texts", ["a"]),
    ("variants[1].sampled_texts", [{"text": "", "stopped": "eos"}] * 33),
    ("variants[1].sampled_texts[0].stopped", "later"),
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_a_wrong_value_is_refused_by_its_path(path, value):
    parts = path.replace("]", "").replace("[", ".").split(".")
    place = tuple(int(part) if part.isdigit() else part for part in parts)
    with pytest.raises(ConfigError) as caught:
        from_json(forged(BASE, place, value))
    assert f"wrong at {path}" in str(caught.value)
    assert len(str(caught.value)) < 300


DERIVED = {"outcome", "loops", "improved_head_share", "worst_head_l1"}
OF_FULL = ("variants", 0, "perturbation")  # nothing is measured of it
MEMBERS = [path for path in paths(BASE) if not DERIVED & {*path} and path[:3] != OF_FULL]


@given(path=st.sampled_from(MEMBERS))
def test_a_value_of_another_type_is_refused_wherever_it_stands(path):
    place = BASE
    for part in path:
        place = place[part]
    other = "x" if isinstance(place, dict | list) else {"no": 1}
    with pytest.raises(ConfigError, match="wrong at"):
        from_json(forged(BASE, path, other))


@pytest.mark.parametrize("data", [None, [], "x", 1, True, {}, {"schema": 1}])
def test_what_is_no_result_is_refused(data):
    with pytest.raises(ConfigError, match="The result JSON is wrong at"):
        from_json(data)


def test_seventeen_variants_are_refused():
    data = small_run()
    data["variants"] *= 9
    with pytest.raises(ConfigError, match="wrong at variants: at most 16"):
        from_json(data)


def test_variants_need_a_model_and_a_prompt():
    for name in ("model", "prompt"):
        data = small_run() | {name: None}
        with pytest.raises(ConfigError, match="wrong at variants"):
            from_json(data)


def test_a_small_file_cannot_ask_for_a_huge_mask():
    data = small_run()
    tokens = 1024
    data["model"] |= {"layers": 1024, "query_heads": 1024, "kv_heads": 1024}
    data["model"]["evictable_layers"] = []
    data["prompt"] |= {"tokens": tokens, "compressed_tokens": tokens, "token_ids": [0] * tokens}
    data["prompt"]["pieces"] = [""] * tokens
    data["variants"][1]["retained"] = [None] * 1024
    tracemalloc.start()
    with pytest.raises(ConfigError, match=r"wrong at prompt\.compressed_tokens"):
        from_json(data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**26  # the mask would take 2**30


@example(path=("variants", 0, "token_texts"), junk=None)  # as in older files
@given(path=st.sampled_from([*paths(BASE)]), junk=JUNK)
def test_junk_anywhere_is_a_config_error_or_a_sound_result(path, junk):
    try:
        result = from_json(forged(BASE, path, junk))
    except ConfigError:
        return
    assert isinstance(result, RunResult)
    assert_same_result(from_json(to_json(result)), result)


@given(events(), st.sampled_from(["compare", "sweep"]))
@example([], "compare")
def test_any_run_is_written_and_comes_back_the_same(stream, kind):
    result = replace(folded(stream), kind=kind)
    written = json.loads(json.dumps(to_json(result), allow_nan=False))
    again = from_json(written)
    assert_same_result(again, result)
    assert to_json(again) == written


# What older files have, and what other programs read.
CONTRACT = {
    "run": "model prompt timings_ms variants environment",
    "model": "name sha256 layers query_heads kv_heads head_dim dtype device",
    "prompt": "scenario tokens compressed_tokens token_ids",
    "variant": "spec label method critical params retained receipt text token_ids stopped "
    "perturbation timings_ms",
    "receipt": "budget_tokens requested_entries retained_entries cache_bytes full_cache_bytes "
    "warnings",
    "perturbation": "head_l1 layer_hidden_l1 final_hidden_l1",
}


def test_the_members_are_those_of_the_contract():
    variant = BASE["variants"][1]
    members = {"run": BASE, "variant": variant} | BASE | variant
    assert BASE["schema"] == 1
    for name, words in CONTRACT.items():
        assert {*words.split()} <= members[name].keys()


def test_retained_lists_are_the_ascending_positions_of_the_mask():
    result = folded(big_events(tokens=50, variants=1))
    mask = result.variants[0].retained.mask()
    assert to_json(result)["variants"][0]["retained"] == [
        [[p for p in range(50) if row[p]] for row in heads] for heads in mask
    ]


def test_layers_that_are_not_evictable_are_null():
    data = small_run()
    data["model"]["evictable_layers"] = list(range(1, 30))
    data["variants"][1]["retained"][0] = None
    data["variants"][1]["perturbation"]["head_l1"][0] = None
    result = from_json(data)
    assert result.variants[1].retained.mask()[0].all()
    assert np.isnan(result.variants[1].perturbation.head_l1[0]).all()
    again = to_json(result)["variants"][1]
    assert again["retained"][0] is None
    assert again["perturbation"]["head_l1"][0] is None
    assert again["retained"][1] == data["variants"][1]["retained"][1]


def test_a_file_with_the_contract_members_only_is_read():
    data = small_run()
    del data["finished"], data["floor"]
    for name in ("evictable_layers", "context_limit"):
        del data["model"][name]
    for name in ("pieces", "context_tokens"):
        del data["prompt"][name]
    for variant in data["variants"]:
        for name in ("token_texts", "agreement", "first_difference", "answer_found"):
            del variant[name]
        for name in ("base_head_l1", "kl", "improved_head_share"):
            variant["perturbation"].pop(name, None)
    data["variants"][1]["retained"][4] = None
    data["variants"][1]["perturbation"]["head_l1"][4] = None
    result = from_json(data)
    assert result.finished
    assert result.floor is None
    assert result.model.evictable_layers == tuple(i for i in range(30) if i != 4)
    assert result.prompt.pieces == ("",) * 16
    assert result.prompt.context_tokens == (0, 16)
    assert result.variants[1].token_texts == ()
    assert math.isnan(result.variants[1].perturbation.kl)
    assert result.variants[0].perturbation is None


def test_unknown_members_are_passed_over():
    data = small_run()
    data["comment"] = data["variants"][0]["note"] = {"any": [1]}
    data["variants"][0]["tokens_per_second"] = 21.5  # of files made elsewhere
    assert_same_result(from_json(data), from_json(small_run()))
