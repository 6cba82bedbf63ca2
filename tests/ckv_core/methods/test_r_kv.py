"""R-KV: its score against literal loops, and whole runs against the literal method."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.compare.compare import compare
from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, r_kv
from ckv_core.request.compare_request import SCENARIOS
from ckv_core.request.variants import VariantSpec
from tests.factories.events import folded
from tests.factories.layers import random_layer
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import PlainRun, short_request
from tests.reference import redundancy as literal

PARAMETERS = {"mix": 0.3, "alike": 0.2, "kernel": 3}


@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 12), st.integers(1, 4), st.integers(0))
def test_the_score_is_the_literal_one(kv_heads, group, past, window, seed):
    layer = random_layer(seed % 2**31, kv_heads, group, past + window, window)
    layer.scaling = 0.7
    found = METHODS.get("r_kv").scorer.scores(layer, {**PARAMETERS, "window": window})
    queries = layer.window_queries(window).double() * 0.7
    for head in range(kv_heads):
        keys = layer.keys[head].double()
        own = queries[head * group : (head + 1) * group]
        logits = [
            [max(float(each[t] @ key) for each in own) for key in keys[:past]]
            for t in range(window)
        ]
        rows = [literal.softmax(row) for row in logits]
        means = [sum(column) / window for column in zip(*rows, strict=True)]
        expected = literal.r_kv(means, keys.tolist(), PARAMETERS)
        torch.testing.assert_close(found[head], torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_similarities_in_blocks_of_rows_give_the_same(monkeypatch):
    keys = random_layer(4, 1, 1, 40).keys[0]
    whole = r_kv.redundancy(keys, 0.5)
    monkeypatch.setattr(r_kv, "_ROWS", 7)
    torch.testing.assert_close(r_kv.redundancy(keys, 0.5), whole)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kept_sets_and_tokens_are_those_of_the_literal_method(scenario):
    """As many KV heads as query heads: the attention then tells all of the logits."""
    spec = "r_kv:budget=40,window=4,kernel=3,buffer=8,mix=0.3,alike=0.2"
    asked = short_request(spec, scenario=scenario, max_new_tokens=20)
    result = folded(compare(asked, tiny_model("mha")))
    (variant,), plain = result.variants, PlainRun("mha", result)
    cache, _, _ = plain.read()
    held = plain.check_tokens(variant, cache, literal.cut_buffer(cache, 40, dict(variant.params)))
    info = plain.info
    assert [len(row) for row in held[0]] == [40 + 20 % 8] * info.kv_heads
    assert variant.held.entries[-1] == (40 + 19 % 8) * info.kv_heads * info.layers


def test_a_buffer_below_the_window_is_refused():
    with pytest.raises(ConfigError, match="must be at least the window"):
        VariantSpec.parse("r_kv:window=16,buffer=8")
