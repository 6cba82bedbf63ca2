"""The result JSON: what is written reads back equal, and its members are the contract's."""

import json
import math

import numpy as np
from hypothesis import example, given

from ckv_core.analysis.result_json import to_json
from ckv_core.results.codec import from_json
from tests.factories.events import assert_same_result, big_events, folded, small_run
from tests.factories.strategies import events


@given(stream=events())
@example(stream=[])
def test_what_is_written_reads_back_equal(stream):
    result = folded(stream)
    text = json.dumps(to_json(result), allow_nan=False)
    assert_same_result(from_json(json.loads(text)), result)


def test_the_members_are_those_of_the_contract():
    data = small_run()
    variant = data["variants"][1]
    assert data["schema"] == 1
    assert {"model", "prompt", "timings_ms", "variants", "environment"} <= data.keys()
    assert {
        "name",
        "sha256",
        "layers",
        "query_heads",
        "kv_heads",
        "head_dim",
        "dtype",
        "device",
    } <= data["model"].keys()
    assert {"scenario", "tokens", "compressed_tokens", "token_ids"} <= data["prompt"].keys()
    assert {
        "spec",
        "label",
        "method",
        "critical",
        "params",
        "retained",
        "receipt",
        "text",
        "token_ids",
        "stopped",
        "perturbation",
        "timings_ms",
    } <= variant.keys()
    assert variant["receipt"].keys() == {
        "budget_tokens",
        "requested_entries",
        "retained_entries",
        "cache_bytes",
        "full_cache_bytes",
        "warnings",
    }
    assert {"head_l1", "layer_hidden_l1", "final_hidden_l1"} <= variant["perturbation"].keys()


def test_retained_lists_are_the_ascending_positions_of_the_mask():
    result = folded(big_events(tokens=50, variants=1))
    mask = result.variants[0].retained.mask()
    lists = to_json(result)["variants"][0]["retained"]
    for layer in range(30):
        for head in range(3):
            assert lists[layer][head] == [p for p in range(50) if mask[layer, head, p]]


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
    data["variants"][0]["tokens_per_second"] = 21.5  # of files of earlier versions
    assert_same_result(from_json(data), from_json(small_run()))
