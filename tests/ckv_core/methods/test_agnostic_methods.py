"""Random, Knorm, LagKV and Expected Attention against literal loops; RoPE undone and averaged."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ckv_core.errors import ConfigError, ModelError
from ckv_core.methods import METHODS
from ckv_core.methods.expected_attention import QueryStatistics
from ckv_core.models.rotary import LayerRotary
from ckv_core.request.variants import VariantSpec
from tests.factories.layers import (
    ROTARY,
    SCALING,
    GivenCandidates,
    gathered,
    plain_queries,
    random_layer,
    scorer,
)
from tests.factories.models import tiny_model
from tests.reference import agnostic_scores as literal
from tests.reference.budgets import adaptive_heads
from tests.reference.selection import top_k

SEEDS = st.integers(0, 2**31)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@given(st.integers(1, 3), st.integers(1, 30), SEEDS)
def test_knorm_is_the_literal_norm_also_of_halves(heads, entries, seed):
    keys = random_layer(seed, heads, 1, entries).keys.half()
    expected = torch.tensor([literal.key_norms(head.tolist()) for head in keys])
    torch.testing.assert_close(scorer("knorm").scores(SimpleNamespace(keys=keys), {}), expected)


def test_random_is_its_own_in_each_seed_layer_and_head_and_the_same_again():
    def drawn(seed: int, layer: int) -> Tensor:
        view = SimpleNamespace(keys=torch.empty(2, 500, 1), layer=layer)
        return scorer("random").scores(view, {"seed": seed, "lots": "own"})

    heads = torch.cat([drawn(*place) for place in ((0, 0), (0, 1), (1, 0))])
    assert torch.equal(heads[:2], drawn(0, 0))
    assert heads.corrcoef().fill_diagonal_(0).abs().max() < 0.2
    assert 0 <= heads.min() < heads.max() < 1
    assert heads.mean(1).sub(0.5).abs().max() < 0.05


@given(st.integers(0, 99), st.integers(0, 5), st.integers(1, 30), st.data())
def test_random_keeps_what_the_literal_lots_say(seed, number, entries, data):
    budget = data.draw(st.integers(0, entries))
    layer = replace(random_layer(1, 2, 1, entries), layer=number)
    candidates = GivenCandidates(
        scorer("random"), {"seed": seed, "lots": "own"}, [layer], slice(0, entries), budget
    )
    method = METHODS.get("random")
    kept = method.selector.keep(candidates, slice(0, 1), torch.full((1, 2), budget)).mask[0]
    for head in range(2):
        expected = top_k(literal.lots(seed, number, head, entries), budget)
        assert set(kept[head].nonzero().flatten().tolist()) == set(expected)


@given(st.integers(1, 3), st.integers(4, 20), SEEDS, st.sampled_from([0.0, 0.2, 1.0]))
def test_ada_expected_attention_shares_budgets_by_the_literal_rule(
    kv_heads, entries, seed, safeguard
):
    """Scores are those of Expected Attention with its offset; heads compete by them."""
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
    for head in range(kv_heads):
        states = (layer.keys[head], layer.values[head])
        expected = literal.expected_attention(plain[head : head + 1], *states, SCALING, parameters)
        torch.testing.assert_close(scores[head], torch.tensor(expected), **CLOSE)
    budgets = method.budget_rule.head_budgets(candidates, spare, parameters)
    assert budgets.tolist() == [adaptive_heads(scores.tolist(), spare, safeguard)]


@given(
    st.integers(1, 2), st.integers(0, 3), st.integers(2, 5), st.integers(1, 30), SEEDS, st.data()
)
def test_lagkv_keeps_what_the_literal_loop_does(heads, sinks, lag, entries, seed, data):
    layer = random_layer(seed, heads, 1, sinks + entries)
    layer.keys[..., 0] = 1.0  # a channel that does not vary must not divide by zero
    budget = data.draw(st.integers(0, entries))
    method, parameters = METHODS.get("lagkv"), {"sinks": sinks, "lag": lag}
    candidates = GivenCandidates(
        scorer("lagkv"), parameters, [layer], slice(sinks, sinks + entries), budget
    )
    kept = method.selector.keep(candidates, slice(0, 1), torch.full((1, heads), budget)).mask
    scores = candidates.scores(0)
    for head in range(heads):
        states = (part[head, sinks:].tolist() for part in (layer.keys, layer.values))
        expected = literal.lag_relative(*states, lag)
        scored = len(expected) * lag
        found = scores[head, :scored]
        torch.testing.assert_close(found, torch.tensor(expected).flatten(), **CLOSE)
        own = found.view(len(expected), lag).tolist()
        members = kept[0, head].nonzero().flatten().tolist()
        assert set(members) == literal.lagkv(own, entries - scored, budget)


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
        expected = literal.expected_attention(own, *states, SCALING, parameters)
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


# --- keyDiff's scores against the literal loop, and what they do not depend on


def scores(keys: torch.Tensor) -> torch.Tensor:
    return scorer("keydiff").scores(SimpleNamespace(keys=keys), {})


@given(st.integers(1, 3), st.integers(1, 30), st.integers(2, 9), st.integers(0, 2**31))
def test_scores_equal_the_literal_loop(heads, entries, dim, seed):
    keys = torch.randn(heads, entries, dim, generator=torch.Generator().manual_seed(seed))
    expected = torch.tensor([literal.key_difference(head.tolist()) for head in keys])
    torch.testing.assert_close(scores(keys), expected, rtol=1e-4, atol=1e-5)


def test_a_keys_length_does_not_matter():
    keys = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(1))
    lengths = torch.linspace(0.1, 9, 12)[:, None]
    torch.testing.assert_close(scores(keys * lengths), scores(keys), rtol=1e-4, atol=1e-5)
