"""Quest and RocketKV: what a step reads, against literal loops, and what a run tells."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.records.variants import VariantSpec
from tests.factories.layers import random_layer
from tests.factories.tiny_runs import BASE, run
from tests.reference import sparse_read as literal


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check_step(
    method: str,
    parameters: dict[str, Any],
    states: Sequence[Tensor],
    reads: Callable[..., list[int]],
) -> None:
    """A step of queries over keys and values [2, entries, 8]; its entries and bytes."""
    queries, keys, values = states
    store, length = METHODS.get(method).store, keys.shape[1]
    segment = store.encode(keys, values, parameters)
    out, total = segment.attend(queries, Scaling(0.3))
    for head in range(2):
        own = [each[head].tolist() for each in states]
        expected = literal.attention(*own, reads(*own[:2]), 0.3)
        torch.testing.assert_close(out[head], torch.tensor(expected[0]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(total[head], torch.tensor(expected[1]), rtol=1e-4, atol=1e-5)
    sizes = (length, 8, 4, parameters)
    assert segment.nbytes == 2 * store.head_bytes(*sizes)
    assert segment.read_bytes == 2 * store.read_bytes(*sizes)
    cut = segment.keep(torch.tensor([[0, length - 1], [1, 2]]))
    assert torch.equal(cut.keys[1], keys[1, 1:3])


@given(
    st.integers(1, 3),
    st.integers(5, 40),
    st.sampled_from([2, 4]),
    st.integers(1, 30),
    st.integers(0, 2**31),
)
def test_a_step_of_quest_attends_to_the_pages_of_the_highest_bounds(
    group, length, page, budget, seed
):
    keys, values, queries = (
        drawn(seed + at, 2, n, 8) for at, n in enumerate((length, length, group))
    )
    parameters = {"read_page": page, "dense_layers": 0, "budget": budget, "query_group": group}
    check_step(
        "quest",
        parameters,
        (queries, keys, values),
        lambda *states: literal.quest_entries(*states, page, budget, 0.3),
    )


@pytest.mark.parametrize("scenario", ["regular", "context-only"])
def test_quest_holds_everything_reads_its_budget_and_with_all_of_it_is_the_full_cache(scenario):
    specs = ("full", "quest:budget=100%", "quest:budget=40,read_page=4,dense_layers=1")
    result = run(replace(BASE, variants=specs, scenario=scenario))
    full, whole, few = result.variants
    assert whole.token_ids == full.token_ids
    receipt, model = few.receipt, result.model
    heads = len(model.evictable_layers) * model.kv_heads
    assert receipt.retained_entries == heads * result.prompt.compressed_tokens
    assert receipt.requested_entries == heads * 40
    assert few.retained.mask().all()
    assert few.perturbation.worst_head_l1 is None
    assert few.perturbation.final_hidden_l1 > 0
    assert receipt.read_bytes < receipt.full_cache_bytes < receipt.cache_bytes
    assert full.receipt.read_bytes == full.receipt.cache_bytes
    assert VariantSpec.parse(specs[2]).holds(40, 99) == 99


@given(st.integers(1, 3), st.integers(5, 60), st.integers(1, 70), st.integers(0, 2**31))
def test_a_step_of_rocketkv_attends_to_the_entries_of_the_highest_bounds(
    group, length, budget, seed
):
    keys, values, queries = (
        drawn(seed + at, 2, n, 8) for at, n in enumerate((length, length, group))
    )
    parameters = {"budget": budget, "query_group": group}
    check_step(
        "rocketkv",
        parameters,
        (queries, keys, values),
        lambda *states: literal.rocket_entries(*states, budget, 0.3),
    )


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(0, 2**20))
def test_rocketkvs_first_stage_has_the_literal_scores(kv_heads, group, past, seed):
    layer = random_layer(seed, kv_heads, group, past + 3, 3)
    parameters = {"window": 3, "kernel": 5, "pool": "max"}
    found = METHODS.get("rocketkv").scorer.scores(layer, parameters)
    expected = torch.tensor(literal.rocket_scores(layer.rows.tolist(), group, 3, 5))
    torch.testing.assert_close(found, expected / (3 * group), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scenario", ["regular", "context-only"])
def test_rocketkv_holds_more_than_it_reads_and_with_everything_is_the_full_cache(scenario):
    specs = ("full", "rocketkv:budget=100%,window=8", "rocketkv:budget=40,window=8", "snapkv")
    result = run(replace(BASE, variants=specs, scenario=scenario))
    full, whole, few, _ = result.variants
    assert whole.token_ids == full.token_ids
    tokens, receipt, model = result.prompt.compressed_tokens, few.receipt, result.model
    heads, held = len(model.evictable_layers) * model.kv_heads, literal.rocket_held(40, tokens)
    assert 40 < held < tokens
    assert receipt.retained_entries == heads * held
    assert receipt.requested_entries == heads * 40
    assert (few.retained.mask().sum(-1) == held).all()
    assert few.perturbation.worst_head_l1 is None
    assert few.perturbation.final_hidden_l1 > 0
    entry = receipt.full_cache_bytes / (heads * tokens)
    assert receipt.read_bytes / entry / heads == pytest.approx(40, rel=0.15)
    assert receipt.read_bytes < receipt.cache_bytes < receipt.full_cache_bytes
    assert VariantSpec.parse(specs[2]).holds(40, tokens) == held
    with pytest.raises(ConfigError, match="reads a part of what it keeps"):
        VariantSpec.parse("rocketkv+critical")
