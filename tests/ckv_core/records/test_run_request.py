"""Laws of a request's points and of what they are said to cost."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.errors import ConfigError
from ckv_core.records.grid import DEFAULT_PARAMETERS, at_points, cost, estimate_seconds
from ckv_core.records.run_request import MAX_SWEEP_POINTS, Point, RunRequest

GRID = RunRequest(
    context="x",
    max_new_tokens=0,
    variants=("snapkv", "snapkv+critical", "adakv+critical_auto"),
    budgets=("64", "128"),
    alphas=("0", "0.25", "0.5"),
)


def specs_of(request: RunRequest) -> tuple[str, ...]:
    return tuple(spec.spec for spec in request.specs)


def test_a_grid_holds_plain_methods_once_per_budget_and_the_full_cache_once():
    names = [spec.name for spec in GRID.validate()]
    assert (len(names), names.index("full")) == (11, 0)
    assert (names.count("full"), names.count("snapkv")) == (1, 2)
    assert (names.count("snapkv+critical"), names.count("adakv+critical_auto")) == (6, 2)
    assert GRID.points()[2] == Point("snapkv", "128")
    assert GRID.points()[4] == Point("snapkv+critical:alpha=0.0", "128")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"variants": ()}, "at least one method"),
        ({"variants": ("full",)}, "at least one method"),
        ({"budgets": ("8", "64")}, "raise the budget"),
        ({"budgets": tuple(map(str, range(64, 320)))}, "has over 256 points"),
        ({"analysis": ("bounds", "forced")}, "forced needs one budget and one alpha"),
        ({"follow_ups": ("why?",), "scenario": "context-only"}, "Follow-up questions need one"),
        ({"name": "many", "budgets": ("64", "10%")}, "all in percent"),
        ({"name": "many"}, "New tokens must be from 1"),
    ],
)
def test_a_wrong_grid_is_one_sentence(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        replace(GRID, **changes).validate()


@given(st.integers(1, 100_000), st.integers(1, 255), st.integers(0, 1000))
def test_more_of_anything_costs_more(tokens, points, new):
    seconds = estimate_seconds(tokens, points, new)
    assert seconds < estimate_seconds(tokens + 1, points, new)
    assert seconds < estimate_seconds(tokens, points + 1, new)
    assert seconds < estimate_seconds(tokens, points, new + 1)
    assert estimate_seconds(tokens, points, new, 3 * DEFAULT_PARAMETERS) == pytest.approx(
        3 * seconds
    )


def test_one_budget_and_alpha_are_a_comparison_and_several_are_points():
    once = replace(
        GRID,
        variants=("full", "snapkv", "snapkv+critical:budget=32"),
        budgets=("64", "64.0"),
        alphas=("0.50",),
    )
    own = "snapkv+critical:budget=32,alpha=0.5"
    assert (once.kind, specs_of(once)) == ("compare", ("full", "snapkv:budget=64", own))
    swept = replace(
        once,
        budgets=("64", "10%"),
        alphas=(),
        defaults={"preset": "kvpress", "window": "16"},
    )
    assert (swept.kind, specs_of(swept)) == (
        "sweep",
        (
            "full",
            "snapkv:budget=64,window=16,preset=kvpress",
            "snapkv:budget=10%,window=16,preset=kvpress",
            "snapkv+critical:budget=32,window=16,preset=kvpress",
        ),
    )


def test_many_samples_have_the_points_of_one_with_budgets_that_rise():
    many = replace(GRID, name="many", budgets=("20%", "10%"))
    one = replace(GRID, budgets=("10%", "20%"))
    assert (many.kind, many.points()) == ("sweep", one.points())
    _, *points = many.points()
    sample = many.of_sample(points[-1:], context="a text", question="why?")
    assert (sample.context, sample.points()) == ("a text", tuple(points[-1:]))
    assert pickle.loads(pickle.dumps(sample)).points() == sample.points()


def test_the_cost_says_what_it_is_made_of():
    other = replace(GRID, model="another/model")
    cheap = cost(GRID, [(100, 11)])
    assert cheap.text.startswith("11 points on 100 prompt tokens: about ")
    guessed = cost(other, [(100, 11)])
    assert guessed.basis.endswith("a larger model takes longer")
    small = cost(other, [(100, 11)], parameters=DEFAULT_PARAMETERS // 2)
    assert small.seconds == cheap.seconds
    bounded = replace(GRID, analysis=("bounds",))
    assert cost(bounded, [(100, 11)]).seconds > cheap.seconds
    large = cost(other, [(100, 11)], parameters=1000 * DEFAULT_PARAMETERS)
    assert large.basis.endswith("times 1,000.0 for this model's size")


@pytest.mark.parametrize(
    "grid",
    [
        {"variants": ("snapkv", "adakv+critical"), "budgets": ("64", "10%"), "alphas": ("0", "1")},
        {"variants": ("snapkv+critical:stage2=pooled",), "budgets": ("64",), "alphas": ("0.125",)},
        {"variants": ("streaming_llm", "snapkv+critical_auto"), "budgets": ("4MiB",)},
    ],
)
def test_the_grid_around_points_gives_them_again(grid):
    places = tuple(range(MAX_SWEEP_POINTS))
    specs = specs_of(RunRequest(context="x", **grid, places=places))
    for wanted in (specs, specs[::-1], specs[1:]):
        found = at_points(RunRequest(context="x"), wanted)
        assert (specs_of(found), {*found.budgets}) == (wanted, {*grid["budgets"]})


def test_points_of_no_grid_are_listed_one_by_one_and_unknown_ones_kept_as_they_are():
    mixed = ("snapkv+critical:budget=64", "snapkv+critical:budget=128,alpha=0.5")
    found = at_points(RunRequest(context="x"), mixed)
    assert (specs_of(found), found.budgets) == (mixed, ())
    assert at_points(RunRequest(context="x"), ("gone:x=1",)).variants == ("gone:x=1",)


def test_a_method_that_writes_out_a_default_is_no_second_method():
    methods = ("snapkv+critical", "snapkv+critical:kernel=7", "snapkv:window=32", "snapkv")
    grid = replace(GRID, variants=methods, budgets=("64", "64.0", "10%"), alphas=("0.25", "0.250"))
    assert specs_of(grid) == (
        "full",
        "snapkv+critical:budget=64,alpha=0.25",
        "snapkv+critical:budget=10%,alpha=0.25",
        "snapkv:budget=64,window=32",
        "snapkv:budget=10%,window=32",
    )


def test_of_many_samples_a_large_window_is_read_with_its_budgets_and_named_without():
    many = replace(GRID, name="many", variants=("snapkv:window=200",), budgets=("300",), alphas=())
    assert {text: spec.spec for text, spec in many.variant_specs().items()} == {
        "full": "full",
        "snapkv:window=200": "snapkv:window=200",
    }
