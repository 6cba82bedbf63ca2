"""The result JSON: nothing wrong gets in, and a refusal names the place."""

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.analysis.result_json import to_json
from ckv_core.errors import ConfigError
from ckv_core.results.codec import from_json
from ckv_core.results.events import RunResult
from tests.factories.events import assert_same_result, small_run

WRONG = [
    ("schema", 2),
    ("schema", True),
    ("schema", None),
    ("finished", "yes"),
    ("environment", None),
    ("environment.python", 3),
    ("timings_ms.prefill", -1),
    ("timings_ms.prefill", math.nan),
    ("timings_ms.prefill", True),
    ("timings_ms.prefill", 10**400),
    ("model.layers", 0),
    ("model.layers", 10**9),
    ("model.layers", 30.0),
    ("model.kv_heads", 10),
    ("model.device", "cpu\x00"),
    ("model.name", "\ud800"),
    ("model.name", "x" * 501),
    ("model.evictable_layers", [1, 0]),
    ("model.evictable_layers[3]", 30),
    ("prompt.tokens", 17),
    ("prompt.compressed_tokens", 17),
    ("prompt.compressed_tokens", -1),
    ("prompt.token_ids[3]", -1),
    ("prompt.token_ids[3]", 2**31),
    ("prompt.token_ids[3]", True),
    ("prompt.token_ids", {"0": 1}),
    ("prompt.pieces", []),
    ("prompt.pieces[2]", None),
    ("prompt.scenario", "other"),
    ("prompt.scenario", []),
    ("prompt.context_tokens", [3]),
    ("prompt.context_tokens[1]", 0),
    ("variants", None),
    ("variants[1]", []),
    ("variants[1].spec", None),
    ("variants[1].method", "<img>"),
    ("variants[1].critical", 1),
    ("variants[1].params.budget", None),
    ("variants[1].params.budget", math.inf),
    ("variants[1].params.budget", 2**60),
    ("variants[1].retained", 5),
    ("variants[1].retained", [[]]),
    ("variants[1].retained[7]", None),
    ("variants[1].retained[7]", [[0], [1]]),
    ("variants[1].retained[7][2]", [1, 1]),
    ("variants[1].retained[7][2]", [2, 1]),
    ("variants[1].retained[7][2]", list(range(17))),
    ("variants[1].retained[7][2][0]", 16),
    ("variants[1].retained[7][2][0]", -1),
    ("variants[1].retained[7][2][0]", 0.0),
    ("model.kv_heads", 2),
    ("variants[1].receipt.cache_bytes", -1),
    ("variants[1].receipt.warnings", None),
    ("variants[1].receipt.warnings", ["x"] * 101),
    ("variants[1].text", 1),
    ("variants[1].token_ids", [0] * 1025),
    ("variants[1].token_texts", ["a"]),
    ("variants[1].stopped", "crash"),
    ("variants[1].agreement", 1.5),
    ("variants[1].first_difference", -1),
    ("variants[1].answer_found", "no"),
    ("variants[1].perturbation.head_l1[0]", [1.0]),
    ("variants[1].perturbation.head_l1[0][8]", "NaN"),
    ("variants[1].perturbation.head_l1[0][8]", 1e39),
    ("variants[1].perturbation.layer_hidden_l1", None),
    ("variants[1].perturbation.layer_hidden_l1", []),
    ("variants[1].perturbation.final_hidden_l1", 1e9),
    ("variants[1].perturbation.kl", [0]),
    ("floor", 1),
    ("floor.kl", None),
    ("floor.kl", -0.5),
    ("floor.layer_hidden_l1", [0.5]),
    ("floor.layer_hidden_l1[3]", None),
    ("floor.layer_hidden_l1[3]", -1.0),
    ("floor.final_hidden_l1", 9.0),
    ("kind", "other"),
    ("memory.total", -1),
    ("memory.total", 1.5),
    ("variants[1].answer_scores.token_f1", 1.5),
    ("variants[1].answer_scores", {f"s{i}": 1 for i in range(17)}),
    ("variants[1].analysis", []),
    ("variants[1].analysis.unheard_of", [1]),
    ("variants[1].analysis.theta", [1.0] * 30),
    ("variants[1].analysis.theta", [[1.0] * 9]),
    ("variants[1].analysis.theta[3]", [1.0] * 8),
    ("variants[1].analysis.theta[3][0]", 1e39),
    ("variants[1].analysis.head_alpha", [0.25] * 30),
    ("variants[1].analysis.head_alpha[3]", [0.25] * 9),
    ("variants[1].analysis.hidden_l2", [1.0]),
    ("variants[1].analysis.normed_l1", []),
    ("variants[1].analysis.normed_l1[0]", "NaN"),
    ("variants[1].analysis", {"forced_kl": [1.0], "forced_top1": []}),
    ("variants[1].analysis", {"forced_kl": [0] * 1025}),
    ("variants[1].forced_steps", [{"reference": [], "variant": []}]),
    ("variants[1].forced_steps[0]", []),
    ("variants[1].forced_steps[0].reference", [[0, "", 0]] * 65),
    ("variants[1].forced_steps[0].reference[0]", [1, "a"]),
    ("variants[1].forced_steps[0].reference[0][0]", -1),
    ("variants[1].forced_steps[0].reference[0][1]", "\ud800"),
    ("variants[1].forced_steps[0].reference[0][2]", 1.1),
    ("variants[1].held", []),
    ("variants[1].held.entries[0]", -1),
    ("variants[1].held.evicted[0]", [1, 0, 0]),
    ("variants[1].held.evicted[0][0]", 2),
    ("variants[1].held.evicted[0][2]", 3),
    ("variants[1].held.evicted[0][3]", 18),
    ("variants[1].held.evicted", [[1, 0, 2, 3], [1, 0, 0, 3]]),
    ("variants[1].held.evicted", [[0, 0, 2, 3], [1, 0, 2, 3]]),
    ("variants[1].follow_ups", [{}] * 9),
    ("variants[1].follow_ups[0].question", None),
    ("variants[1].follow_ups[0].token_texts", ["a"]),
    ("variants[1].follow_ups[0].stopped", None),
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_a_wrong_value_is_refused_by_its_path(path, value):
    data = small_run()
    parts = path.replace("]", "").replace("[", ".").split(".")
    owner = data
    for part in parts[:-1]:
        owner = owner[int(part) if isinstance(owner, list) else part]
    owner[int(parts[-1]) if isinstance(owner, list) else parts[-1]] = value
    with pytest.raises(ConfigError) as caught:
        from_json(data)
    assert f"wrong at {path}" in str(caught.value)
    assert len(str(caught.value)) < 300


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
    with pytest.raises(ConfigError, match=r"wrong at prompt\.compressed_tokens"):
        from_json(data)


def paths(value: object, path: tuple = ()) -> list[tuple]:
    """Every path in a decoded JSON, containers included."""
    found = [path]
    if isinstance(value, dict):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, list) else []
    for key, child in items[:4]:
        found += paths(child, (*path, key))
    return found


BASE = small_run()
PATHS = paths(BASE)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(path=st.sampled_from(PATHS), junk=JUNK)
def test_junk_anywhere_is_a_config_error_or_a_sound_result(path, junk):
    data = copy.deepcopy(BASE)
    if path:
        owner = data
        for key in path[:-1]:
            owner = owner[key]
        owner[path[-1]] = junk
    else:
        data = junk
    try:
        result = from_json(data)
    except ConfigError:
        return
    assert isinstance(result, RunResult)
    assert_same_result(from_json(to_json(result)), result)
