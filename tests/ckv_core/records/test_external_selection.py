"""Files of kept positions: what is written is read; whatever is wrong is one sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.errors import ConfigError
from ckv_core.records.external_selection import (
    MAX_VARIANTS,
    own_to_json,
    read_external_selection,
    unpack,
)
from ckv_core.records.run_request import RunRequest
from tests.factories.hostile import JUNK, forged, paths
from tests.factories.runs import selection_file
from tests.factories.strategies import own_variants

FULL_FORM = selection_file(
    [[[0, 2], [1]], [[3], [4]]],
    model={"sha256": "ab", "layers": 2, "kv_heads": 2},
    prompt={"compressed_tokens": 5, "token_ids": [9, 8, 7, 6, 5, 4]},
)


def text_of(variants) -> str:
    return "\n".join(map(json.dumps, own_to_json(variants)))


@given(st.lists(own_variants(), max_size=3).map(tuple))
def test_what_is_written_is_read_equal(variants):
    assert read_external_selection(text_of(variants)) == variants


def test_positions_may_come_in_any_order():
    (own,) = read_external_selection(selection_file([[[4, 0, 2]]]))
    assert own.rows is not None
    assert unpack(own.rows[0][0]).tolist() == [0, 2, 4]


def test_tokens_after_the_compressed_prompt_are_left_out():
    (own,) = read_external_selection(FULL_FORM)
    assert unpack(own.token_ids).tolist() == [9, 8, 7, 6, 5]


def test_variants_that_share_a_label_are_called_by_their_spec():
    variants = [
        {"label": "SnapKV", "spec": f"snapkv:budget={budget}", "retained": [0]}
        for budget in (32, 64)
    ]
    variants.append({"label": "Full cache", "spec": "full", "retained": None})
    read = read_external_selection(json.dumps({"schema": 1, "variants": variants}))
    assert [own.label for own in read] == ["snapkv:budget=32", "snapkv:budget=64"]


def test_documents_may_follow_one_another():
    read = read_external_selection(f"{selection_file([0], 'A')}\n\n{selection_file([1], 'B')}")
    assert [own.label for own in read] == ["A", "B"]


def test_the_short_digest_tells_positions_apart():
    (left,), (right,) = (read_external_selection(selection_file([at])) for at in (0, 1))
    assert str(left) != str(right)
    assert str(left).startswith("Mine (")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not valid JSON (line 1, column 2)"),
        ('{"schema": true, "variants": []}', "schema 1 is expected"),
        ("[" * 200_000, "nested deeper than 32 levels"),
        ("[" + "{}," * 140_000, "objects and arrays"),
        ('{"schema": 1, "variants": [' + "9" * 5_000 + "]}", "a number in it is too long"),
        (selection_file(None), "a variant with `retained` positions is expected"),
        (selection_file([]), "per layer and KV head, per layer, or for all alike"),
        (selection_file([[[[0]]]]), "per layer and KV head, per layer, or for all alike"),
        (selection_file([[[], []]]), "a kept position is expected"),
        (selection_file([0, 1, 0]), "position 0 is expected once"),
        (selection_file([0, True]), "wrong at variants[0].retained[1]: a whole number"),
        (selection_file([10**30]), "a whole number from 0"),
        (selection_file([[[0], [1]], [[0]]]), "retained[1]: 2 values are expected, got 1"),
        (selection_file([[0], [1]], model={"layers": 3}), "retained: 3 values are expected, got 2"),
        (
            selection_file([[[0]]], model={"kv_heads": 2}),
            "retained[0]: 2 values are expected, got 1",
        ),
        (selection_file([5], prompt={"compressed_tokens": 5}), "a whole number from 0 to 4"),
        (selection_file([0], prompt={"compressed_tokens": 0}), "a number of at least 1"),
        (
            selection_file([0], prompt={"compressed_tokens": 3, "token_ids": [1]}),
            "for each compressed",
        ),
        (selection_file([0], "turned \u202e around"), "label: a name without"),
        (selection_file([0], "x" * 201), "at most 200 characters"),
        (selection_file([0]) * (MAX_VARIANTS + 1), f"one run takes up to {MAX_VARIANTS}"),
    ],
)
def test_a_wrong_file_is_one_sentence(text, sentence):
    with pytest.raises(ConfigError) as refused:
        read_external_selection(text)
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 300
    assert "result JSON" not in str(refused.value)


def test_a_text_that_is_too_long_is_not_parsed(monkeypatch):
    monkeypatch.setattr("ckv_core.records.external_selection.MAX_CHARS", 10)
    with pytest.raises(ConfigError, match="10 can be read"):
        read_external_selection(selection_file([0]))


@given(path=st.sampled_from([*paths(json.loads(FULL_FORM))]), junk=JUNK)
def test_any_value_in_any_place_is_read_or_refused(path, junk):
    try:
        found = read_external_selection(json.dumps(forged(json.loads(FULL_FORM), path, junk)))
    except ConfigError:
        return
    assert read_external_selection(text_of(found)) == found


@given(st.integers(1, len(FULL_FORM) - 1))
def test_a_file_that_is_cut_off_is_refused(length):
    with pytest.raises(ConfigError):
        read_external_selection(FULL_FORM[:length])


# --- in a request -------------------------------------------------------------------------


def request(**changes) -> RunRequest:
    own = read_external_selection(changes.pop("text", selection_file([0, 1])))
    return RunRequest(**{"context": "text", "variants": ("full",), "own_indices": own} | changes)


def test_own_variants_come_last_under_their_label():
    specs = request(variants=("full", "snapkv")).validate()
    assert [spec.label for spec in specs] == ["Full cache", "SnapKV", "Mine"]
    assert specs[-1].spec == "own:label=Mine"
    assert len(request(variants=()).validate()) == 1  # they alone are a run


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"text": selection_file([0]) * 2}, "'own:label=Mine' is listed twice"),
        ({"budgets": ("64", "128")}, "Kept positions of your own have one budget"),
        ({"variants": tuple(f"snapkv:budget={40 + i}" for i in range(16))}, "17 methods are too"),
    ],
)
def test_a_wrong_set_of_own_variants_is_refused(changes, sentence):
    with pytest.raises(ConfigError) as refused:
        request(**changes).validate()
    assert sentence in str(refused.value)
