"""Methods that look at no question, against literal loops, their evidence gathered in chunks."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.errors import ConfigError, ModelError
from ckv_core.methods import METHODS
from ckv_core.methods.capkv import QuerySum
from ckv_core.methods.compactor import NonCausalAttention, sketches
from ckv_core.methods.expected_attention import QueryStatistics
from ckv_core.models.rope import LayerRotary
from ckv_core.records.variants import VariantSpec
from tests.factories.layers import (
    DIM,
    ROTARY,
    SCALING,
    GivenCandidates,
    gathered,
    kept,
    plain_queries,
    random_layer,
    scorer,
)
from tests.factories.models import tiny_model
from tests.reference import agnostic_scores as literal
from tests.reference import leverage_scores as leverages
from tests.reference.budgets import adaptive_heads
from tests.reference.scores import pooled
from tests.reference.selection import top_k

SEEDS = st.integers(0, 2**31)
SIZES = st.tuples(st.integers(1, 2), st.integers(1, 2))  # KV heads, query heads of each
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def of_keys(method, keys):
    return scorer(method).scores(SimpleNamespace(keys=keys), {})


@given(st.integers(1, 3), st.integers(1, 30), SEEDS)
def test_knorm_is_the_literal_norm_also_of_halves(heads, entries, seed):
    keys = random_layer(seed, heads, 1, entries).keys.half()
    expected = torch.tensor([literal.key_norms(head.tolist()) for head in keys])
    torch.testing.assert_close(of_keys("knorm", keys), expected)


@given(st.integers(1, 3), st.integers(1, 30), st.integers(2, 9), SEEDS)
def test_keydiff_is_the_literal_difference_whatever_the_lengths_of_keys(heads, entries, dim, seed):
    keys = random_layer(seed, heads, 1, entries, dim=dim).keys
    expected = torch.tensor([literal.key_difference(head.tolist()) for head in keys])
    torch.testing.assert_close(of_keys("keydiff", keys), expected, **CLOSE)
    lengths = torch.linspace(0.1, 9, entries)[:, None]
    torch.testing.assert_close(of_keys("keydiff", keys * lengths), expected, **CLOSE)


@given(st.integers(1, 3), st.integers(1, 30), st.integers(1, 12), SEEDS)
def test_curdkv_is_the_literal_product_of_shares(heads, entries, local, seed):
    layer = random_layer(seed, heads, 1, entries)
    expected = [
        literal.curdkv(keys, values, local)
        for keys, values in zip(layer.keys.tolist(), layer.values.tolist(), strict=True)
    ]
    found = scorer("curdkv").scores(layer, {"local": local})
    torch.testing.assert_close(found, torch.tensor(expected), **CLOSE)


@given(st.integers(0, 99), st.integers(0, 5), st.integers(1, 30), st.data())
def test_random_keeps_what_the_literal_lots_say(seed, number, entries, data):
    budget = data.draw(st.integers(0, entries))
    layer = replace(random_layer(1, 2, 1, entries), layer=number)
    candidates = GivenCandidates(
        scorer("random"), {"seed": seed, "lots": "own"}, [layer], slice(0, entries), budget
    )
    lots = [literal.lots(seed, number, head, entries) for head in range(2)]
    assert kept("random", candidates) == [[set(top_k(row, budget)) for row in lots]]


@given(st.integers(1, 3), st.integers(4, 20), SEEDS, st.sampled_from([0.0, 0.2, 1.0]))
def test_ada_expected_attention_shares_budgets_by_the_literal_rule(
    kv_heads, entries, seed, safeguard
):
    """Scores are those of Expected Attention, with an offset by default; heads compete by them."""
    method, sinks = METHODS.get("ada_expected_attention"), 2
    plain, layer = plain_queries(kv_heads, entries, seed), random_layer(seed, kv_heads, 1, entries)
    gathered(layer, QueryStatistics(sinks), ROTARY.turn(plain, 0), seed)
    spare = seed % (entries - sinks + 1)
    parameters = {"sinks": sinks, "future": 3, "offset": 0.01, "value_size": "on"}
    parameters |= {"safeguard": safeguard, "safeguard_rule": "blend"}
    assert method.parameters()["offset"].default == 0.01
    found = scorer("ada_expected_attention")
    candidates = GivenCandidates(found, parameters, [layer], slice(sinks, entries), spare)
    scores = candidates.scores(0)
    assert torch.equal(scores, scorer("expected_attention").scores(layer, parameters)[:, sinks:])
    budgets = method.budget_rule.head_budgets(candidates, spare, parameters)
    assert budgets.tolist() == [adaptive_heads(scores.tolist(), spare, safeguard)]


@given(
    st.integers(1, 2), st.integers(0, 3), st.integers(2, 5), st.integers(1, 30), SEEDS, st.data()
)
def test_lagkv_keeps_what_the_literal_loop_does(heads, sinks, lag, entries, seed, data):
    layer = random_layer(seed, heads, 1, sinks + entries)
    layer.keys[..., 0] = 1.0  # a channel that does not vary must not divide by zero
    budget = data.draw(st.integers(0, entries))
    parameters = {"sinks": sinks, "lag": lag, "ties": "place"}
    candidates = GivenCandidates(
        scorer("lagkv"), parameters, [layer], slice(sinks, sinks + entries), budget
    )
    (members,), scores = kept("lagkv", candidates), candidates.scores(0)
    for head in range(heads):
        states = (part[head, sinks:].tolist() for part in (layer.keys, layer.values))
        expected = literal.lag_relative(*states, lag)
        scored = len(expected) * lag
        found = scores[head, :scored]
        torch.testing.assert_close(found, torch.tensor(expected).flatten(), **CLOSE)
        own = found.view(len(expected), lag).tolist()
        assert members[head] == literal.lagkv(own, entries - scored, budget)
    parameters["ties"] = "topk"
    every = GivenCandidates(scorer("lagkv"), parameters, [layer], slice(0, sinks + entries), budget)
    (members,) = kept("lagkv", every)
    for head in range(heads):
        own = every.scores(0)[head, sinks : sinks + scored].view(-1, lag).tolist()
        ranks = torch.tensor(literal.lagkv_ranks(own, sinks, entries))
        assert members[head] == {*ranks.topk(budget).indices.tolist()}


@pytest.mark.parametrize(
    ("prompt_len", "budget", "least"), [(400, 159, 160), (400, 160, None), (170, 169, 170)]
)
def test_a_protected_tail_refuses_a_budget_that_does_not_hold_it(prompt_len, budget, least):
    """400 = 16 sinks, 240 scored, 80 + 64 of tail: whole partitions of 80."""
    inside = VariantSpec.parse(f"lagkv:budget={budget},lag=80")
    inside.check_budget(budget, prompt_len)
    spec = VariantSpec.parse(f"lagkv:budget={budget},lag=80,tail=protected")
    if least is None:
        spec.check_budget(budget, prompt_len)
        return
    with pytest.raises(ConfigError, match=f"sinks and tail are {least} of"):
        spec.check_budget(budget, prompt_len)


@given(st.integers(1, 2), st.integers(1, 2), st.integers(0, 4), st.integers(5, 14), SEEDS)
def test_expected_attention_is_the_literal_one(kv_heads, group_size, sinks, entries, seed):
    parameters = {"sinks": sinks, "future": 3, "offset": 0.01}
    layer = random_layer(seed, kv_heads, group_size, entries)
    plain = plain_queries(kv_heads * group_size, entries, seed) + 1
    gathered(layer, QueryStatistics(sinks), ROTARY.turn(plain, 0), seed)
    found = scorer("expected_attention").scores(layer, {**parameters, "value_size": "on"})
    for head in range(kv_heads):
        own = plain[head * group_size : (head + 1) * group_size]
        states = (layer.keys[head], layer.values[head])
        expected = literal.expected_attention(own, *states, SCALING.factor, parameters)
        torch.testing.assert_close(found[head, sinks:], torch.tensor(expected), **CLOSE)


@pytest.mark.parametrize("arch", ["llama", "qwen3", "phi3", "gemma3", "longrope", "partial"])
def test_a_layers_rope_is_undone_and_averaged_as_the_model_turns(arch):
    loaded = tiny_model(arch)
    rotary = LayerRotary(loaded, loaded.info.evictable_layers[0])
    plain = torch.randn(2, 5, loaded.info.head_dim, generator=torch.Generator().manual_seed(3))
    turned = rotary.turn(plain, 40)
    assert not torch.allclose(turned, plain, atol=0.1)
    torch.testing.assert_close(rotary.undo(turned, 40), plain, **CLOSE)
    by = torch.tensor([[3, 0, 200]]).expand(len(plain), -1)
    at = [rotary.turn(plain[:, t : t + 1], 40 + t + int(by[0, t])) for t in range(3)]
    torch.testing.assert_close(rotary.move(turned[:, :3], by), torch.cat(at, 1), **CLOSE)
    places = [rotary.turn(plain[:, :1], 40 + t) for t in range(7)]
    torch.testing.assert_close(
        rotary.mean_turn(plain[:, :1], 40, 7), torch.stack(places).mean(0), **CLOSE
    )


def test_a_layer_that_does_not_turn_by_position_is_refused():
    loaded = tiny_model("nope")
    with pytest.raises(ModelError, match="choose another method"):
        LayerRotary(loaded, 1)
    assert math.isfinite(LayerRotary(loaded, 0).turn(torch.ones(1, 1, 16), 5).sum())


@given(
    SIZES,
    st.integers(0, 4),
    st.integers(6, 14),
    SEEDS,
    st.sampled_from(["seen", "future"]),
    st.booleans(),
)
def test_capkv_is_the_literal_leverage(sizes, sinks, entries, seed, anchor, cosine):
    (kv_heads, group), heads = sizes, sizes[0] * sizes[1]
    plain = plain_queries(heads, entries, seed)
    queries = ROTARY.turn(plain, 0)
    observer = QuerySum(sinks) if anchor == "seen" else QueryStatistics(sinks)
    layer = gathered(random_layer(seed, kv_heads, group, entries, dim=DIM), observer, queries, seed)
    parameters = {"sinks": sinks, "future": 3, "anchor": anchor, "tau": 2.0}
    parameters |= {"align": "cosine" if cosine else "dot"}
    found = scorer("capkv").evidence(layer, parameters)
    scale = 1.0 if cosine else SCALING.factor
    for head in range(heads):
        mean = (queries if anchor == "seen" else plain)[head, sinks:].mean(0)
        if anchor == "future":
            mean = ROTARY.mean_turn(mean[None, None], entries, 3)[0, 0]
        keys, values = (each[head // group, sinks:] for each in (layer.keys, layer.values))
        expected = leverages.capacity(
            (keys.double() * scale).tolist(), values.tolist(), mean.tolist(), 2.0, cosine=cosine
        )
        torch.testing.assert_close(found[head, sinks:], torch.tensor(expected), **CLOSE)
    assert not found[:, :sinks].any()
    torch.testing.assert_close(
        scorer("capkv").scores(layer, parameters), found.view(kv_heads, group, -1).mean(1)
    )


@given(
    SIZES,
    st.integers(6, 24),
    SEEDS,
    st.tuples(st.integers(1, 9), st.sampled_from([(2, 1), (0, 0)])),
    st.sampled_from(["paper", "kvpress"]),
    st.sampled_from([0, 3, 4]),
)
def test_compactor_is_the_literal_sum_of_outliers_and_attention(
    sizes, entries, seed, cut, preset, sketch
):
    """Tiles that begin and end in other chunks, the last one not full."""
    (kv_heads, group), (tile, ends), kvpress = sizes, cut, preset == "kvpress"
    inner = slice(ends[0], entries - ends[1])
    parameters = {"sinks": ends[0], "recent": ends[1]}
    parameters |= {"tile": tile, "pad": "attended" if kvpress else "masked"}
    parameters |= {"kernel": 3 if kvpress else 1, "value_size": "on" if kvpress else "off"}
    parameters |= {"drawn": "in_turn" if kvpress else "apart"}
    parameters |= {"sketch": sketch, "seed": 5, "blend": "ratio" if kvpress else 0.5, "budget": 4}
    observer = NonCausalAttention(tile, *ends, kvpress)
    queries = ROTARY.turn(plain_queries(kv_heads * group, entries, seed), 0)
    layer = gathered(random_layer(seed, kv_heads, group, entries, dim=DIM), observer, queries, seed)
    found = scorer("compactor").scores(layer, parameters)
    attention, outliers = [], []
    mixed = sketches(layer.layer, kv_heads, DIM, parameters)
    assert [each is None for each in mixed] == [sketch != 3] * kv_heads
    for head in range(kv_heads):
        keys, values = (each[head, inner].tolist() for each in (layer.keys, layer.values))
        own = queries[head * group : (head + 1) * group, inner].tolist()
        per_head = [leverages.tile_attention(each, keys, tile, attended=kvpress) for each in own]
        means = [sum(column) / group for column in zip(*per_head, strict=True)]
        if kvpress:
            sized = [a * math.hypot(*v) for a, v in zip(means, values, strict=True)]
            means = pooled(sized, "avg", 3)
        attention.append(means)
        own_sketch = None if mixed[head] is None else mixed[head].tolist()
        before = ROTARY.undo(layer.keys[head : head + 1, inner], ends[0])[0].tolist()
        outliers.append(leverages.leverage(before, own_sketch, 0.01))
    weight = 1 - 4 / entries if kvpress else 0.5
    halves = {
        "noncausal": torch.tensor(leverages.standardised(attention)),
        "leverage": torch.tensor(leverages.standardised(outliers)),
    }
    expected = halves["noncausal"] + weight * halves["leverage"]
    torch.testing.assert_close(found[:, inner], expected, rtol=1e-3, atol=1e-3)
    assert not found[:, : ends[0]].any()
    if ends == (0, 0):  # then each is a method by itself
        for method, half in halves.items():
            alone = scorer(method).scores(layer, parameters)
            torch.testing.assert_close(alone, half, rtol=1e-3, atol=1e-3)


def test_sketches_in_turn_are_what_torchs_own_generator_draws_layer_by_layer():
    """As kvpress does: all KV heads of a layer at once."""
    parameters = {"seed": 7, "sketch": 48, "drawn": "in_turn"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        drawn = [torch.randn(1, 3, 64, 48) * (1 / math.sqrt(48)) for _ in range(4)]
    for layer, expected in enumerate(drawn):
        found = sketches(layer, 3, 64, parameters)
        torch.testing.assert_close(torch.stack(found), expected[0])


def test_only_a_blend_by_ratio_is_scored_anew_for_another_budget():
    compactor, parameters = METHODS.get("compactor"), {}
    for blend, differs in (("ratio", True), (0.5, False)):
        parameters = {
            parameter.name: parameter.default for parameter in compactor.parameters().values()
        } | {"blend": blend}
        keys = {scorer("compactor").key({**parameters, "budget": budget}) for budget in (30, 60)}
        assert len(keys) == 1 + differs
