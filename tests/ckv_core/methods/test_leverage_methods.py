"""CapKV and Compactor against literal loops, their evidence gathered in chunks of any border."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.methods import METHODS
from ckv_core.methods.capkv import QuerySum
from ckv_core.methods.compactor import NonCausalAttention, sketches
from ckv_core.methods.expected_attention import QueryStatistics
from tests.factories.layers import (
    DIM,
    ROTARY,
    SCALING,
    gathered,
    plain_queries,
    random_layer,
    scorer,
)
from tests.reference import leverage_scores as literal
from tests.reference.scores import pooled

SEEDS = st.integers(0, 2**31)
SIZES = st.tuples(st.integers(1, 2), st.integers(1, 2))  # KV heads, query heads of each
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


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
    scale = 1.0 if cosine else SCALING
    for head in range(heads):
        mean = (queries if anchor == "seen" else plain)[head, sinks:].mean(0)
        if anchor == "future":
            mean = ROTARY.mean_turn(mean[None, None], entries, 3)[0, 0]
        keys, values = (each[head // group, sinks:] for each in (layer.keys, layer.values))
        expected = literal.capacity(
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
    st.integers(1, 9),
    st.sampled_from(["paper", "kvpress"]),
    st.sampled_from([0, 3, 4]),
)
def test_compactor_is_the_literal_sum_of_outliers_and_attention(
    sizes, entries, seed, tile, preset, sketch
):
    """Tiles that begin and end in other chunks, the last one not full."""
    (kv_heads, group), kvpress = sizes, preset == "kvpress"
    parameters = {"sinks": 2, "recent": 1, "tile": tile, "pad": "attended" if kvpress else "masked"}
    parameters |= {"kernel": 3 if kvpress else 1, "value_size": "on" if kvpress else "off"}
    parameters |= {"drawn": "in_turn" if kvpress else "apart"}
    parameters |= {"sketch": sketch, "seed": 5, "blend": "ratio" if kvpress else 0.5, "budget": 4}
    observer = NonCausalAttention(tile, 2, 1, kvpress)
    queries = ROTARY.turn(plain_queries(kv_heads * group, entries, seed), 0)
    layer = gathered(random_layer(seed, kv_heads, group, entries, dim=DIM), observer, queries, seed)
    found = scorer("compactor").scores(layer, parameters)
    attention, leverages = [], []
    mixed = sketches(layer.layer, kv_heads, DIM, parameters)
    assert [each is None for each in mixed] == [sketch != 3] * kv_heads
    for head in range(kv_heads):
        keys, values = (each[head, 2:-1].tolist() for each in (layer.keys, layer.values))
        own = queries[head * group : (head + 1) * group, 2:-1].tolist()
        per_head = [literal.tile_attention(each, keys, tile, attended=kvpress) for each in own]
        means = [sum(column) / group for column in zip(*per_head, strict=True)]
        if kvpress:
            sized = [a * literal.dot(v, v) ** 0.5 for a, v in zip(means, values, strict=True)]
            means = pooled(sized, "avg", 3)
        attention.append(means)
        own_sketch = None if mixed[head] is None else mixed[head].tolist()
        before = ROTARY.undo(layer.keys[head : head + 1, 2:-1], 2)[0].tolist()
        leverages.append(literal.leverage(before, own_sketch, 0.01))
    weight = 1 - 4 / entries if kvpress else 0.5
    pairs = zip(literal.standardised(attention), literal.standardised(leverages), strict=True)
    expected = [[a + weight * b for a, b in zip(*pair, strict=True)] for pair in pairs]
    torch.testing.assert_close(found[:, 2:-1], torch.tensor(expected), rtol=1e-3, atol=1e-3)
    assert not found[:, :2].any()


def test_sketches_in_turn_are_what_torchs_own_generator_draws_layer_by_layer():
    """As kvpress does: all KV heads of a layer at once."""
    parameters = {"seed": 7, "sketch": 48, "drawn": "in_turn"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        drawn = [torch.randn(1, 3, 64, 48) * (1 / math.sqrt(48)) for _ in range(4)]
    for layer, expected in enumerate(drawn):
        found = sketches(layer, 3, 64, parameters)
        torch.testing.assert_close(torch.stack(found), expected[0])
    apart = {**parameters, "drawn": "apart"}
    for kind in (parameters, apart):  # none is another's
        every = [each for layer in range(3) for each in sketches(layer, 2, 64, kind)]
        assert len({float(each[0, 0]) for each in every}) == 6


def test_only_a_blend_by_ratio_is_scored_anew_for_another_budget():
    compactor, parameters = METHODS.get("compactor"), {}
    for blend, differs in (("ratio", True), (0.5, False)):
        parameters = {
            parameter.name: parameter.default for parameter in compactor.parameters().values()
        } | {"blend": blend}
        keys = {scorer("compactor").key({**parameters, "budget": budget}) for budget in (30, 60)}
        assert len(keys) == 1 + differs
