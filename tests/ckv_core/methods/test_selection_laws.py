"""Laws of window scores, budgets and selectors, property-based, against literal loops.

Drawn scores are small whole numbers over 64: sums of up to four and products with whole
norms are exact in float32, so ties are real ties and equality can be demanded, not closeness.
"""

import math
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.methods.partial_attention import value_norm, window_attention
from ckv_core.methods.parts.critical import Ranking, first_quotas, first_stage
from ckv_core.methods.parts.shares import (
    adaptive_budgets,
    floored_budgets,
    integer_shares,
    safeguarded,
)
from ckv_core.methods.parts.top_k import keep_first, order
from ckv_core.methods.pyramidkv import pyramid_budgets
from ckv_core.methods.streaming_llm import Position
from ckv_core.request.variants import VariantSpec
from tests.factories.layers import Scores, window_scores
from tests.reference import budgets as literal_budgets
from tests.reference import scores as literal_scores
from tests.reference import selection as literal

Rows = list[list[float]]
RATIOS = st.sampled_from([0.0, 0.1, 0.25, 0.29, 0.5, 0.57, 0.7, 1.0])


@st.composite
def rows(draw: st.DrawFn, heads: int | None = None, columns: int | None = None) -> Rows:
    """[heads][columns] scores with many ties."""
    heads = heads or draw(st.integers(1, 4))
    columns = columns or draw(st.integers(1, 20))
    top = draw(st.sampled_from([1, 3, 40]))
    values = draw(st.lists(st.integers(0, top), min_size=heads * columns, max_size=heads * columns))
    return [[v / 64 for v in values[h * columns : (h + 1) * columns]] for h in range(heads)]


@st.composite
def scored_budgets(draw: st.DrawFn) -> tuple[Rows, Rows, list[int]]:
    """First and second score and an unequal budget per head, 0 and all included."""
    first = draw(rows())
    second = draw(rows(len(first), len(first[0])))
    counts = st.one_of(st.integers(0, len(first[0])), st.sampled_from([0, len(first[0])]))
    return first, second, draw(st.lists(counts, min_size=len(first), max_size=len(first)))


def kept(mask: torch.Tensor) -> list[set[int]]:
    return [set(row.nonzero().flatten().tolist()) for row in mask]


def scores_of(first: Rows, second: Rows) -> Scores:
    return Scores(torch.tensor(first), torch.tensor(second))


def top_k(score: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
    """Plain selection, as the engine does it."""
    return keep_first(order(score), budgets)


def critical(scores: Scores, budgets: torch.Tensor, alpha: float) -> torch.Tensor:
    ranking = Ranking(order(scores.first), order(scores.second))
    return ranking.keep(budgets, first_stage(budgets, alpha))


def adaptive(first: Rows, spare: int, safeguard: float) -> torch.Tensor:
    """Budgets of one layer's heads, as the engine finds them."""
    joint = order(torch.tensor(first).flatten())
    return adaptive_budgets(joint[None], len(first), spare, safeguard)[0]


# --- window scores and value norms --------------------------------------------------------

SCORINGS = st.fixed_dictionaries(
    {
        "kernel": st.sampled_from([1, 3, 7, 31]),
        "pool": st.sampled_from(["max", "avg", "none"]),
        "group": st.sampled_from(["mean", "max"]),
        "sinks": st.integers(0, 3),
        "stage2": st.sampled_from(["raw", "pooled"]),
        "norm": st.sampled_from(["on", "off"]),
        "product": st.sampled_from(["head", "group"]),
        "epsilon": st.sampled_from([0.0, 1e-4, 0.5]),
    }
)


@given(st.sampled_from([(1, 1), (2, 2), (1, 4), (3, 3)]), st.integers(4, 20), SCORINGS, st.data())
def test_scores_equal_the_literal_loop(heads, columns, parameters, data):
    kv_heads, group_size = heads
    attention = data.draw(rows(kv_heads * group_size, columns))
    norms = [[64 * v + 1 for v in row] for row in data.draw(rows(len(attention), columns + 2))]
    scores = window_scores(torch.tensor(attention), torch.tensor(norms), kv_heads, parameters)
    sinks = int(parameters["sinks"])
    cut = [row[:columns] for row in norms]
    first = literal_scores.first_stage_score(attention, group_size, parameters)
    second = literal_scores.second_stage_score(attention, cut, group_size, parameters)
    # float32 against float64: a handful of roundings of relative size 6e-8 each
    close = {"rtol": 2e-6, "atol": 1e-7}
    torch.testing.assert_close(
        scores.first.double(), torch.tensor(first).double()[:, sinks:], **close
    )
    torch.testing.assert_close(
        scores.second.double(), torch.tensor(second).double()[:, sinks:], **close
    )


@given(rows(6, 12), SCORINGS, st.permutations(range(3)))
def test_permuting_query_heads_inside_a_group_changes_no_score(attention, parameters, members):
    parameters = {**parameters, "kernel": 1, "epsilon": 0.0}
    norms = [[64 * v + 1 for v in row] for row in attention[::-1]]
    permuted = [3 * group + head for group in range(2) for head in members]
    before = window_scores(torch.tensor(attention), torch.tensor(norms), 2, parameters)
    after = window_scores(
        torch.tensor(attention)[permuted], torch.tensor(norms)[permuted], 2, parameters
    )
    assert torch.equal(before.first, after.first)
    # sums of three are exact here; the thirds of the two group means multiply with a rounding
    torch.testing.assert_close(before.second, after.second, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("block", [1, 6, 1_000], ids="rows of a block {}".format)
@pytest.mark.parametrize(("kv_heads", "group_size", "head_dim"), [(1, 1, 4), (2, 3, 5), (3, 1, 8)])
def test_value_norm_equals_one_matrix_product_per_entry(
    kv_heads, group_size, head_dim, block, monkeypatch
):
    monkeypatch.setattr("ckv_core.methods.partial_attention.block_rows", lambda *, on_cuda: block)
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(kv_heads, 9, head_dim, generator=generator)
    weight = torch.randn(11, kv_heads * group_size * head_dim, generator=generator)
    expected = literal_scores.value_norms(values, weight, kv_heads * group_size)
    # float32 sums of 11 absolute products of length <= 8
    torch.testing.assert_close(
        value_norm(values, weight), torch.tensor(expected), rtol=1e-5, atol=1e-5
    )


def test_window_attention_is_causal_inside_the_window_and_counts_its_keys():
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(4, 3, 6, generator=generator)
    keys = torch.randn(2, 10, 6, generator=generator)
    result = window_attention(queries, keys, 0.37)
    for head in range(4):
        columns = [0.0] * 7
        for t in range(3):
            visible = keys[head // 2, : 10 - 3 + t + 1].double()
            weights = (visible @ queries[head, t].double() * 0.37).exp()
            weights = weights / weights.sum()
            columns = [c + float(w) / 3 for c, w in zip(columns, weights[:7], strict=True)]
        torch.testing.assert_close(result[head], torch.tensor(columns), rtol=1e-5, atol=1e-7)


# --- selectors ----------------------------------------------------------------------------


@given(scored_budgets())
def test_top_k_equals_the_literal_loop(case):
    first, _, counts = case
    expected = [set(literal.top_k(row, k)) for row, k in zip(first, counts, strict=True)]
    assert kept(top_k(torch.tensor(first), torch.tensor(counts))) == expected


@given(scored_budgets(), RATIOS)
def test_critical_equals_algorithm_1_as_a_literal_loop(case, alpha):
    first, second, counts = case
    expected = [
        set(literal.two_stage(a, b, k, alpha))
        for a, b, k in zip(first, second, counts, strict=True)
    ]
    scores, budgets = scores_of(first, second), torch.tensor(counts)
    mask = critical(scores, budgets, alpha)
    assert kept(mask) == expected
    assert mask.sum(-1).tolist() == counts
    given_back = [each.tolist() for each in (scores.first, scores.second, budgets)]
    assert given_back == [first, second, counts], "what selects leaves its inputs as they are"


@given(scored_budgets())
def test_alpha_one_is_the_base_selection_and_zero_top_k_of_the_weighted_score(case):
    first, second, counts = case
    budgets = torch.tensor(counts)
    for alpha, ranked in ((1.0, first), (0.0, second)):
        found = critical(scores_of(first, second), budgets, alpha)
        assert torch.equal(found, top_k(torch.tensor(ranked), budgets))


@given(scored_budgets(), RATIOS, st.sampled_from([0.5, 1.0, 8.0]))
def test_a_constant_value_norm_changes_nothing(case, alpha, norm):
    first, _, counts = case
    budgets = torch.tensor(counts)
    parameters = {**VariantSpec.parse("snapkv+critical:pool=none").params}
    scores = window_scores(
        torch.tensor(first), torch.full((len(first), len(first[0])), norm), len(first), parameters
    )
    base = top_k(scores.first, budgets)
    assert torch.equal(critical(scores, budgets, alpha), base)


# --- budgets ------------------------------------------------------------------------------


@given(rows(), RATIOS, st.data())
def test_adaptive_budgets_equal_the_literal_count(first, safeguard, data):
    spare = data.draw(st.integers(0, len(first[0])))
    budgets = adaptive(first, spare, safeguard).tolist()
    assert budgets == literal_budgets.adaptive_heads(first, spare, safeguard)
    assert sum(budgets) == len(first) * spare
    assert all(0 <= count <= len(first[0]) for count in budgets)
    assert safeguard < 1 or budgets == [spare] * len(first)


@pytest.mark.parametrize(
    ("counts", "spare", "safeguard"),
    [([4, 5, 0], 3, 0.2), ([3, 13], 8, 0.1), ([1, 11], 6, 0.7)],
)
def test_remainders_that_tie_as_decimals_tie_in_adaptive_budgets(counts, spare, safeguard):
    """In binary fractions the shares of these heads are a little off, and another head gains."""
    first = [[float(place < count) for place in range(max(counts))] for count in counts]
    budgets = adaptive(first, spare, safeguard).tolist()
    assert budgets == literal_budgets.adaptive_heads(first, spare, safeguard)


@given(rows(), st.data())
def test_adaptive_safeguard_zero_is_the_flattened_top(first, data):
    spare = data.draw(st.integers(0, len(first[0])))
    budgets = adaptive(first, spare, 0.0)
    mask = top_k(torch.tensor(first), budgets)
    flat = [value for row in first for value in row]
    top = literal.top_k(flat, len(first) * spare)
    columns = len(first[0])
    assert kept(mask) == [
        {i % columns for i in top if i // columns == head} for head in range(len(first))
    ]


@given(st.integers(2, 4), st.integers(1, 20), RATIOS, st.data())
def test_identical_heads_get_equal_budgets_up_to_ties(heads, columns, safeguard, data):
    row = [value / 64 for value in data.draw(st.permutations(range(columns)))]
    spare = data.draw(st.integers(0, columns))
    budgets = adaptive([row] * heads, spare, safeguard).tolist()
    assert budgets == [spare] * heads


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 60), st.integers(0, 60), st.data())
def test_pyramid_budgets_equal_exact_arithmetic(layers, kv_heads, spare, slack, data):
    beta = data.draw(st.sampled_from([1.0, 1.5, 3.0, 20.0, 1000.0]))
    capacity = spare + slack
    budgets = pyramid_budgets((layers, kv_heads), spare, capacity, beta)
    per_layer = literal_budgets.pyramid_layers(spare, layers, beta, capacity)
    assert budgets.tolist() == [[count] * kv_heads for count in per_layer]
    assert int(budgets.sum()) == layers * kv_heads * spare
    assert 0 <= int(budgets.min()) <= int(budgets.max()) <= capacity
    # whole numbers of falling shares: a remainder may lift a later layer by at most one
    assert all(later <= earlier + 1 for earlier, later in pairwise(per_layer))


@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 60), st.integers(0, 9), st.data())
def test_kvpress_pyramid_budgets_equal_its_own_rule(layers, spare, slack, inside, data):
    beta, capacity = data.draw(st.sampled_from([1.0, 1.5, 3.0, 20.0])), spare + slack
    budgets = pyramid_budgets((layers, 2), spare, capacity, beta, inside)
    per_layer = literal_budgets.kvpress_pyramid(spare, layers, beta, capacity, inside)
    assert budgets.tolist() == [[count] * 2 for count in per_layer]
    assert int(budgets.sum()) == layers * 2 * spare


@given(rows(), RATIOS, st.integers(0, 9), st.data())
def test_kvpress_head_budgets_equal_its_own_rule(first, safeguard, protected, data):
    spare = data.draw(st.integers(0, len(first[0])))
    parameters = {"safeguard": safeguard, "safeguard_rule": "floor"}
    candidates = SimpleNamespace(spare=spare, protected=protected, parameters=parameters)
    joint = order(torch.tensor(first).flatten())[None]
    budgets = floored_budgets(joint, len(first), spare, safeguarded(candidates))[0].tolist()
    assert budgets == literal_budgets.kvpress_heads(first, spare, safeguard, protected)
    assert sum(budgets) == len(first) * spare


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.integers(1, 30),
    st.sampled_from([0.0, 0.1, 0.25]),
    st.integers(0, 3),
    st.sampled_from([0.29, 0.5, 0.7, 1.0]),
)
def test_stage_one_grants_what_the_safeguard_grants(extra, spare, alpha, protected, safeguard):
    parameters = {"alpha": alpha, "safeguard": safeguard, "safeguard_rule": "floor"}
    parameters["stage1_counts_window"] = "on"
    candidates = SimpleNamespace(spare=spare, protected=protected, parameters=parameters)
    floor = max(math.floor((spare + protected) * Fraction(str(safeguard))), 1)
    sure = min(max(floor - protected, 0), spare)
    budgets = [sure + count for count in extra]
    shares = [math.floor((count + protected) * Fraction(str(alpha))) for count in budgets]
    quotas = first_quotas(candidates, torch.tensor(budgets)).tolist()
    assert quotas == [max(share - protected, sure) for share in shares]


@given(scored_budgets(), RATIOS, st.integers(0, 9), st.sampled_from([0.0, 0.2, 0.7]))
def test_stage_one_may_count_what_a_head_is_sure_of(case, alpha, protected, safeguard):
    first, second, counts = case
    spare = min(counts)
    parameters = {"alpha": alpha, "safeguard": safeguard, "safeguard_rule": "floor"}
    parameters["stage1_counts_window"] = "on"
    candidates = SimpleNamespace(spare=spare, protected=protected, parameters=parameters)
    budgets = torch.tensor(counts)
    ranking = Ranking(*(order(torch.tensor(score)) for score in (first, second)))
    found = kept(ranking.keep(budgets, first_quotas(candidates, budgets)))
    floor = math.floor((spare + protected) * Fraction(str(safeguard)))
    safe = min(max(floor, 1) if safeguard else 0, spare + protected)
    assert found == [
        set(literal.two_stage(a, b, count, alpha, (protected, safe)))
        for a, b, count in zip(first, second, counts, strict=True)
    ]


@given(st.lists(st.fractions(0, 30, max_denominator=12), min_size=1, max_size=6), st.data())
def test_largest_remainder_equals_the_literal_rule(shares, data):
    total = math.ceil(sum(shares)) if data.draw(st.booleans()) else math.floor(sum(shares))
    cap = data.draw(st.integers(-(-total // len(shares)), 40))
    whole = integer_shares(shares, total, cap)
    if all(share <= cap for share in shares):
        assert whole == literal_budgets.largest_remainder(shares, total, cap)
    assert sum(whole) == total
    assert all(0 <= count <= cap for count in whole)


def test_streaming_llm_ranks_all_heads_alike_and_newer_first():
    layer = SimpleNamespace(keys=torch.zeros(3, 10, 2))
    mask = top_k(Position().scores(layer, {}), torch.tensor([4, 4, 4]))
    assert kept(mask) == [{6, 7, 8, 9}] * 3
