"""Laws of the window scores and value norms, property-based, against literal loops.

The scores drawn are whole numbers over 64, as in the laws of the selectors.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.methods.attention_scores import value_norm, window_attention
from tests.ckv_core.methods.test_selection_laws import rows
from tests.factories.layers import window_scores
from tests.reference import scores as literal_scores

PARAMETERS = st.fixed_dictionaries(
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


@given(st.sampled_from([(1, 1), (2, 2), (1, 4), (3, 3)]), st.integers(4, 20), PARAMETERS, st.data())
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


@given(rows(6, 12), PARAMETERS, st.permutations(range(3)))
def test_permuting_query_heads_inside_a_group_changes_no_score(attention, parameters, order):
    parameters = {**parameters, "kernel": 1, "epsilon": 0.0}
    norms = [[64 * v + 1 for v in row] for row in attention[::-1]]
    permuted = [3 * group + head for group in range(2) for head in order]
    before = window_scores(torch.tensor(attention), torch.tensor(norms), 2, parameters)
    after = window_scores(
        torch.tensor(attention)[permuted], torch.tensor(norms)[permuted], 2, parameters
    )
    assert torch.equal(before.first, after.first)
    # sums of three are exact here; the thirds of the two group means multiply with a rounding
    torch.testing.assert_close(before.second, after.second, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("rows", [1, 6, 1_000], ids="rows of a block {}".format)
@pytest.mark.parametrize(("kv_heads", "group_size", "head_dim"), [(1, 1, 4), (2, 3, 5), (3, 1, 8)])
def test_value_norm_equals_one_matrix_product_per_entry(
    kv_heads, group_size, head_dim, rows, monkeypatch
):
    monkeypatch.setattr("ckv_core.methods.attention_scores.block_rows", lambda *, on_cuda: rows)
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
