"""Laws of a sweep's grid and of what it is said to cost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.errors import ConfigError
from ckv_core.records.grid import (
    DEFAULT_PARAMETERS,
    SweepGrid,
    estimate_seconds,
    sweep_cost,
    with_points,
)
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import VariantSpec

GRID = SweepGrid(
    methods=("snapkv", "snapkv+critical", "adakv+critical_auto"),
    budgets=("64", "128"),
    alphas=("0", "0.25", "0.5"),
)
PROMPT = RunRequest(context="x", max_new_tokens=0, variants=GRID.methods)


def test_a_grid_holds_plain_methods_once_per_budget_and_the_full_cache_once():
    variants = GRID.variants()
    names = [VariantSpec.parse(text).name for text in variants]
    assert (names.count("full"), names.count("snapkv")) == (1, 2)
    assert (names.count("snapkv+critical"), names.count("adakv+critical_auto")) == (6, 2)
    swept = with_points(PROMPT, GRID.budgets, GRID.alphas)
    assert swept.variants == variants
    assert len(swept.validate()) == 11


@pytest.mark.parametrize(
    ("methods", "budgets", "sentence"),
    [
        ((), ["64"], "at least one method"),
        (["full"], ["64"], "at least one method"),
        (["snapkv"], ["8"], "raise the budget"),
        (["snapkv"], [*map(str, range(64, 320))], "has 257 points, the full cache among them"),
    ],
)
def test_a_wrong_grid_is_one_sentence(methods, budgets, sentence):
    with pytest.raises(ConfigError, match=sentence):
        SweepGrid(methods=tuple(methods), budgets=tuple(budgets)).variants()


@given(st.integers(1, 100_000), st.integers(1, 255), st.integers(0, 1000))
def test_more_of_anything_costs_more(tokens, points, new):
    cost = estimate_seconds(tokens, points, new)
    assert cost < estimate_seconds(tokens + 1, points, new)
    assert cost < estimate_seconds(tokens, points + 1, new)
    assert cost < estimate_seconds(tokens, points, new + 1)
    assert estimate_seconds(tokens, points, new, 3 * DEFAULT_PARAMETERS) == pytest.approx(3 * cost)


def test_one_budget_and_alpha_are_defaults_and_several_are_points():
    request = replace(PROMPT, variants=("full", "snapkv", "snapkv+critical:budget=32"))
    once = with_points(request, ["64", "64.0"], ["0.50"])
    assert (once.kind, once.variants) == ("compare", request.variants)
    assert once.defaults == {"budget": "64", "alpha": "0.5"}
    assert with_points(request, [], []) == request
    request = replace(request, defaults={"preset": "kvpress", "window": "16"})
    swept = with_points(request, ["64", "10%"])
    assert (swept.kind, swept.defaults) == ("sweep", {})
    assert swept.variants == (
        "full",
        "snapkv:budget=64,window=16,preset=kvpress",
        "snapkv:budget=10%,window=16,preset=kvpress",
        "snapkv+critical:budget=32,window=16,preset=kvpress",
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"analysis": ("bounds", "forced")}, "forced needs one budget and one alpha"),
        ({"follow_ups": ("why?",), "scenario": "context-only"}, "Follow-up questions need one"),
    ],
)
def test_what_several_budgets_cannot_have_is_one_sentence(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        with_points(replace(PROMPT, **changes), ["64", "128"]).validate()


def test_the_cost_says_what_it_is_made_of():
    request = with_points(PROMPT, GRID.budgets, GRID.alphas)
    other = replace(request, model="another/model")
    cheap = sweep_cost(request, 100, is_counted=True)
    assert cheap.text.startswith("11 points on 100 prompt tokens: about ")
    guessed = sweep_cost(other, 100, is_counted=True)
    assert guessed.basis.endswith("a larger model takes longer")
    small = sweep_cost(other, 100, is_counted=True, parameters=DEFAULT_PARAMETERS // 2)
    assert small.seconds == cheap.seconds
    bounded = replace(request, analysis=("bounds",))
    assert sweep_cost(bounded, 100, is_counted=True).seconds > cheap.seconds
    large = sweep_cost(other, 100, is_counted=True, parameters=1000 * DEFAULT_PARAMETERS)
    assert large.basis.endswith("times 1,000.0 for this model's size")


@pytest.mark.parametrize(
    "grid",
    [
        SweepGrid(methods=("snapkv", "adakv+critical"), budgets=("64", "10%"), alphas=("0", "0.5")),
        SweepGrid(methods=("snapkv+critical:stage2=pooled",), budgets=("64",), alphas=("0.125",)),
        SweepGrid(methods=("streaming_llm", "snapkv+critical_auto"), budgets=("4MiB",)),
    ],
)
def test_the_grid_around_a_sweeps_points_gives_them_again(grid):
    points = grid.variants()
    assert SweepGrid.around(points).variants() == points


def test_a_method_that_writes_out_a_default_is_no_second_method():
    methods = ("snapkv+critical", "snapkv+critical:kernel=7", "snapkv:window=32", "snapkv")
    grid = SweepGrid(methods=methods, budgets=("64", "64.0", "10%"), alphas=("0.25", "0.250"))
    assert grid.variants() == (
        "full",
        "snapkv+critical:budget=64,alpha=0.25",
        "snapkv+critical:budget=10%,alpha=0.25",
        "snapkv:budget=64,window=32",
        "snapkv:budget=10%,window=32",
    )
    mixed = ("snapkv+critical:budget=64", "snapkv+critical:kernel=7,alpha=0.25,budget=128")
    assert SweepGrid.around(mixed) == SweepGrid(
        methods=("snapkv+critical",), budgets=("64", "128"), alphas=("0.25",)
    )
