"""CAKE, DefensiveKV, ChunkKV, LaProx, DropKV, CAOTE, LAVa, VATP and R-KV against literal loops."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ckv_core.engine.compare import compare
from ckv_core.methods import METHODS, r_kv
from ckv_core.methods.parts.rules import top_counts
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.records.run_request import SCENARIOS
from tests.ckv_core.methods.test_selection_laws import rows
from tests.factories.events import folded
from tests.factories.layers import GivenCandidates, GivenStates, kept, random_layer, scorer
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import PlainRun, short_request
from tests.reference import budgets as literal_budgets
from tests.reference import redundancy
from tests.reference import window_methods as literal
from tests.reference.budgets import adaptive_heads, largest_remainder
from tests.reference.scores import group_reduced, pooled

SEEDS = st.integers(0, 2**31)
SIZES = (st.integers(1, 3), st.integers(1, 2), st.integers(2, 18), st.integers(1, 4))
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def scores(method: str, layer: GivenStates, parameters: dict[str, object]) -> Tensor:
    return scorer(method).scores(layer, {"window": layer.rows.shape[1], **parameters})


def given_candidates(
    method: str, layers: list[GivenStates], spare: int, parameters: dict[str, object]
) -> GivenCandidates:
    window, entries = layers[0].rows.shape[1:]
    parameters = {"window": window, "sinks": 0, **parameters}
    return GivenCandidates(scorer(method), parameters, layers, slice(0, entries - window), spare)


@given(*SIZES, SEEDS)
def test_cake_scores_and_layer_budgets_are_the_literal_ones(
    kv_heads, group_size, past, window, seed
):
    window += 1
    shape = (kv_heads, group_size, past + window, window)
    layers = [random_layer(seed + each, *shape) for each in range(3)]
    parameters = {"gamma": 200.0, "kernel": 5, "pool": "avg", "group": "mean"}
    found = scores("cake", layers[0], parameters)
    expected = literal.cake_scores(layers[0].rows.tolist(), group_size, 200.0, 5)
    torch.testing.assert_close(found, torch.tensor(expected), **CLOSE)
    taus, spare = {"tau1": 1.6, "tau2": 0.4}, seed % (past + 1)
    candidates = given_candidates("cake", layers, spare, {**parameters, **taus})
    rule = METHODS.get("cake").budget_rule
    budgets = rule.head_budgets(candidates, spare, {**candidates.parameters, **taus})
    shares = literal.cake_preferences([each.rows.tolist() for each in layers], 1.6, 0.4)
    wished = largest_remainder([Fraction(each) * 3 * spare for each in shares], 3 * spare, past)
    assert budgets.tolist() == [[each] * kv_heads for each in wished]


@given(*SIZES, SEEDS)
def test_the_worst_case_is_the_literal_one(kv_heads, group_size, past, window, seed):
    layer = random_layer(seed, kv_heads, group_size, past + window, window)
    expected = literal.worst_case(layer.rows.tolist(), layer.norms.tolist(), kv_heads, 5)
    found = scores("defensivekv", layer, {"kernel": 5})
    torch.testing.assert_close(found, torch.tensor(expected), **CLOSE)


@given(*SIZES, SEEDS, st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]))
def test_defensivekv_keeps_what_the_literal_stages_do(
    kv_heads, group_size, past, window, seed, mass
):
    """Heads of a layer compete, or those of all layers; each first has its own stage 1."""
    shape = (kv_heads, group_size, past + window, window)
    layers = [random_layer(seed + each, *shape) for each in range(2)]
    spare = seed % (past + 1)
    candidates = given_candidates("defensivekv", layers, spare, {"kernel": 5, "mass": mass})
    attention = [
        each.window_attention(window).view(kv_heads, -1, past).mean(1).tolist() for each in layers
    ]
    ranked = [candidates.scores(place).tolist() for place in range(2)]
    by_layer = [
        literal.defensive_kept(attention[place], ranked[place], mass, spare) for place in range(2)
    ]
    assert kept("defensivekv", candidates) == by_layer
    heads = [[row for layer in part for row in layer] for part in (attention, ranked)]
    together = literal.defensive_kept(heads[0], heads[1], mass, spare)
    assert kept("layer_defensivekv", candidates) == [together[:kv_heads], together[kv_heads:]]


@given(rows(), st.data())
def test_counts_of_the_top_scores_are_those_of_a_stable_sort(drawn, data):
    total = data.draw(st.integers(0, len(drawn) * len(drawn[0])))
    flat = sorted((-score, head) for head, row in enumerate(drawn) for score in row)
    expected = [sum(head == each for _, each in flat[:total]) for head in range(len(drawn))]
    assert top_counts(torch.tensor(drawn), total).tolist() == expected


@given(st.integers(1, 3), st.integers(2, 18), SEEDS, st.integers(1, 6), st.booleans())
def test_chunkkv_keeps_whole_chunks_but_the_last(kv_heads, past, seed, size, shared):
    layer = random_layer(seed, kv_heads, 2, past + 3, 3)
    parameters = {"chunk": size, "chunks_of": "layer" if shared else "head", "pool": "none"}
    parameters |= {"group": "mean", "kernel": 1}
    candidates = given_candidates("chunkkv", [layer], seed % (past + 1), parameters)
    ranked = candidates.scores(0).double()
    if shared:
        window = torch.full((kv_heads, 3), float(ranked.max()) + 1)
        ranked = torch.cat([ranked, window], 1).mean(0).expand(kv_heads, -1)
    spare = candidates.spare
    expected = [literal.chunks_kept(row, size, spare, past) for row in ranked.tolist()]
    assert kept("chunkkv", candidates) == [expected]


@given(st.integers(1, 2), st.integers(2, 18), SEEDS, st.integers(2, 6), st.booleans())
def test_gated_chunkkv_takes_the_best_of_spiky_chunks_only(kv_heads, past, seed, size, shared):
    layer = random_layer(seed, kv_heads, 2, past + 3, 3)
    parameters = {"chunk": size, "chunks_of": "layer" if shared else "head", "pool": "none"}
    parameters |= {"group": "mean", "kernel": 1, "spiky": 1 + seed % (size - 1)}
    candidates = given_candidates("gated_chunkkv", [layer], seed % (past + 1), parameters)
    ranked = candidates.scores(0)
    if shared:
        window = torch.full((kv_heads, 3), float(ranked.max()) + 1)
        ranked = torch.cat([ranked, window], 1).mean(0).expand(kv_heads, -1)
    orders = [literal.gated_order(row, size, parameters["spiky"]) for row in ranked.tolist()]
    expected = [{*[i for i in row if i < past][: candidates.spare]} for row in orders]
    assert kept("gated_chunkkv", candidates) == [expected]


@given(*SIZES, SEEDS)
def test_laprox_keeps_the_highest_shares_of_all_layers(kv_heads, group_size, past, window, seed):
    shape = (kv_heads, group_size, past + window, window)
    layers = [random_layer(seed + each, *shape) for each in range(3)]
    layers[1].norms *= 7  # another layer's size must not matter
    parameters = {"kernel": 3, "pool": "avg", "group": "mean"}
    candidates = given_candidates("laprox", layers, seed % (past + 1), parameters)
    expected = [
        literal.laprox_scores(each.rows.tolist(), (each.norms * 2).tolist(), group_size, 3)
        for each in layers
    ]
    found = [scores("laprox", each, parameters) for each in layers]
    torch.testing.assert_close(torch.stack(found), torch.tensor(expected), **CLOSE)
    total = 3 * kv_heads * candidates.spare
    assert kept("laprox", candidates) == literal.highest_of_all(
        [each.tolist() for each in found], total
    )


@pytest.mark.parametrize("method", ["dropkv", "caote"])
@given(*SIZES, SEEDS)
def test_scores_are_how_far_the_output_moves_without_the_entry(
    method, kv_heads, group_size, past, window, seed
):
    """The output is summed again without it, where the methods have a closed form."""
    layer = random_layer(seed, kv_heads, group_size, past + window, window)
    parameters = {"kernel": 3, "pool": "avg", "group": "mean", "output": "attended"}
    per_head = []
    for head, attention in enumerate(layer.rows.double().tolist()):
        values = layer.values[head // group_size].tolist()
        if method == "dropkv":
            own = literal.dropkv_scores(attention, values)
        else:
            own = literal.moved(np.mean(attention, axis=0).tolist(), values)
        per_head.append(pooled(own, "avg", 3))
    expected = torch.tensor(group_reduced(per_head, group_size, "mean"), dtype=torch.float32)
    torch.testing.assert_close(scores(method, layer, parameters), expected, rtol=2e-3, atol=1e-6)


@given(*SIZES, SEEDS)
def test_lavas_scores_and_budgets_are_the_literal_ones(kv_heads, group_size, past, window, seed):
    shape = (kv_heads, group_size, past + window, window)
    layers = [random_layer(seed + each, *shape) for each in range(3)]
    parameters = {"kernel": 3, "pool": "max", "group": "max", "safeguard": 0.2}
    candidates = given_candidates("lava", layers, seed % (past + 1), parameters)
    found = [candidates.scores(place) for place in range(3)]
    expected = [literal.lava_scores(each.rows.tolist(), each.values.tolist(), 3) for each in layers]
    torch.testing.assert_close(torch.stack(found), torch.tensor(expected), **CLOSE)
    weights = [Fraction(literal.entropy(each.tolist())) for each in found]
    weights = weights if any(weights) else [Fraction(1)] * 3
    total = 3 * candidates.spare
    by_layer = largest_remainder([each / sum(weights) * total for each in weights], total, past)
    budgets = METHODS.get("lava").budget_rule.head_budgets(
        candidates, candidates.spare, candidates.parameters
    )
    assert budgets.tolist() == [
        adaptive_heads(each.tolist(), own, 0.2) for each, own in zip(found, by_layer, strict=True)
    ]


@given(*SIZES, SEEDS, st.sampled_from([0.0, 0.125, 0.25, 2.0]))
def test_a_threshold_keeps_what_is_no_less_and_the_best_where_that_is_too_much(
    kv_heads, group_size, past, window, seed, least
):
    shape = (kv_heads, group_size, past + window, window)
    layers = [random_layer(seed + each, *shape) for each in range(3)]
    parameters = {"kernel": 3, "pool": "max", "group": "mean", "threshold": least}
    candidates = given_candidates("snapkv", layers, seed % (past + 1), parameters)
    rule = METHODS.get("kvzip_threshold").budget_rule
    found = rule.head_budgets(candidates, candidates.spare, candidates.parameters).tolist()
    ranked = sorted(
        ((-float(score), place, head) for place in range(3)
         for head, row in enumerate(candidates.scores(place)) for score in row),
    )[: 3 * kv_heads * candidates.spare]  # fmt: skip
    kept = [(place, head) for score, place, head in ranked if -score >= least]
    assert found == [[kept.count((place, head)) for head in range(kv_heads)] for place in range(3)]


@given(*SIZES, SEEDS)
def test_whole_heads_and_whole_layers_are_granted_one_after_the_other(
    kv_heads, group_size, past, window, seed
):
    shape = (kv_heads, group_size, past + window, window)
    layers = [random_layer(seed + each, *shape) for each in range(3)]
    parameters = {"table": "given", "sinks": 1, "recent": window}
    candidates = given_candidates("simlayerkv", layers, seed % (past + 1), parameters)
    candidates.table = [[[(seed + 2 * i + j) % 3 / 2 for j in range(kv_heads)] for i in range(3)]]
    total = 3 * kv_heads * candidates.spare

    def budgets(method: str) -> list[list[int]]:
        rule = METHODS.get(method).budget_rule
        return rule.head_budgets(candidates, candidates.spare, candidates.parameters).tolist()

    worth = [each for row in candidates.table[0] for each in row]
    given = literal_budgets.granted(worth, total, past)
    assert [each for row in budgets("duo_attention") for each in row] == given
    lazy = [literal_budgets.laziness(each.rows.tolist(), 1, window) for each in layers]
    by_layer = literal_budgets.granted([-each for each in lazy], total, kv_heads * past)
    shares = [[Fraction(each, kv_heads)] * kv_heads for each in by_layer]
    found = budgets("simlayerkv")
    assert found == [
        largest_remainder(row, own, past) for row, own in zip(shares, by_layer, strict=True)
    ]


@given(st.integers(1, 3), st.integers(1, 2), st.integers(4, 30), SEEDS, st.data())
def test_vatp_keeps_the_newest_half_then_sinks_then_the_largest_products(
    kv_heads, group_size, entries, seed, data
):
    sinks = data.draw(st.integers(0, (entries - 1) // 2))
    budget = data.draw(st.sampled_from([2 * sinks, 2 * sinks + 1, entries - 1, entries]))
    layer = random_layer(seed, kv_heads, group_size, entries)
    layer.gathered = 5 * layer.rows[:, 0]
    scored, columns = METHODS.get("vatp").scorer, slice(sinks, entries)
    candidates = GivenCandidates(scored, {"sinks": sinks}, [layer], columns, budget - sinks)
    attention, groups = layer.gathered.tolist(), range(0, kv_heads * group_size, group_size)
    expected = [
        literal.vatp_kept(attention[at : at + group_size], values, budget, sinks)
        for at, values in zip(groups, layer.values.tolist(), strict=True)
    ]
    (found,) = kept("vatp", candidates)
    assert [{*range(sinks), *(sinks + i for i in row)} for row in found] == expected


@pytest.mark.parametrize(
    ("spec", "kept_first", "kept_last"),
    [
        ("vatp:budget=99", 20, 49),
        ("vatp:budget=25", 20, 5),
        ("vatp:budget=99,layout=layer", 20, 49),
        ("snapkv:budget=99,select=half_recent", 0, 49),
        ("snapkv:budget=50,select=half_recent", 0, 32),
        ("h2o:budget=99", 0, 49),
    ],
)
def test_half_of_the_whole_budget_is_the_newest(spec, kept_first, kept_last):
    """Sinks lie in the other half, a window in this one; where they do not fit they are kept."""
    result = folded(compare(short_request(spec, max_new_tokens=1), tiny_model("llama")))
    mask = result.variants[0].retained.mask()
    assert mask[..., :kept_first].all()
    assert mask[..., mask.shape[-1] - kept_last :].all()
    assert not mask[..., mask.shape[-1] - kept_last - 1].all()


# --- r_kv, whose score alone is not all: it goes on evicting ---------------------------------


@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 18), st.integers(1, 4), SEEDS)
def test_r_kvs_score_is_the_literal_one(kv_heads, group, past, window, seed):
    parameters = {"mix": 0.3, "alike": 0.2, "kernel": 3}
    layer = random_layer(seed, kv_heads, group, past + window, window)
    layer.scaling = Scaling(0.7)
    found = scores("r_kv", layer, parameters)
    queries = layer.window_queries(window).double() * 0.7
    for head in range(kv_heads):
        keys = layer.keys[head].double()
        own = queries[head * group : (head + 1) * group]
        logits = [
            [max(float(each[t] @ key) for each in own) for key in keys[:past]]
            for t in range(window)
        ]
        rows = [redundancy.softmax(row) for row in logits]
        means = [sum(column) / window for column in zip(*rows, strict=True)]
        expected = redundancy.r_kv(means, keys.tolist(), parameters)
        torch.testing.assert_close(found[head], torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_r_kvs_similarities_in_blocks_of_rows_give_the_same(monkeypatch):
    keys = random_layer(4, 1, 1, 40).keys[0]
    whole = r_kv.redundancy(keys, 0.5)
    monkeypatch.setattr(r_kv, "_ROWS", 7)
    torch.testing.assert_close(r_kv.redundancy(keys, 0.5), whole)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_r_kvs_kept_sets_and_tokens_are_those_of_the_literal_method(scenario):
    """As many KV heads as query heads: the attention then tells all of the logits."""
    spec = "r_kv:budget=40,window=4,kernel=3,buffer=8,mix=0.3,alike=0.2"
    asked = short_request(spec, scenario=scenario, max_new_tokens=20)
    result = folded(compare(asked, tiny_model("mha")))
    (variant,), plain = result.variants, PlainRun("mha", result)
    cache, _, _ = plain.read()
    held = plain.check_tokens(
        variant, cache, redundancy.cut_buffer(cache, 40, dict(variant.params))
    )
    info = plain.info
    assert [len(row) for row in held[0]] == [40 + 20 % 8] * info.kv_heads
    assert variant.held.entries[-1] == (40 + 19 % 8) * info.kv_heads * info.layers
