"""Laws of a sweep's grid, cost and what is read from its points."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.analysis.sweep import SWEPT, alpha_optima, curves, known_figures
from ckv_core.errors import ConfigError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.grid import DEFAULT_PARAMETERS, SweepGrid, estimate_seconds, sweep_cost
from ckv_core.request.variants import VariantSpec
from ckv_core.results.chain import mean_head_l1
from ckv_core.results.events import RunResult
from ckv_core.results.figures import FIGURES
from tests.factories.runs import SWEPT_MODEL, measured, swept_point, variant

GRID = SweepGrid(
    methods=("snapkv", "snapkv+critical", "adakv+critical_auto"),
    budgets=("64", "128"),
    alphas=("0", "0.25", "0.5"),
)


def test_a_grid_holds_plain_methods_once_per_budget_and_the_full_cache_once():
    variants = GRID.variants()
    names = [VariantSpec.parse(text).name for text in variants]
    assert (names.count("full"), names.count("snapkv")) == (1, 2)
    assert (names.count("snapkv+critical"), names.count("adakv+critical_auto")) == (6, 2)
    request = GRID.request(CompareRequest(context="x", max_new_tokens=0))
    assert len(request.validate()) == len(variants) == 11


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        (SweepGrid(methods=(), budgets=("64",)), "at least one method"),
        (SweepGrid(methods=("snapkv",), budgets=()), "at least one budget"),
        (SweepGrid(methods=("snapkv+critical",), budgets=("64",)), "at least one alpha"),
        (SweepGrid(methods=("full",), budgets=("64",)), "remove it from the methods"),
        (SweepGrid(methods=("snapkv:budget=64",), budgets=("64",)), "sets budget, which"),
        (SweepGrid(methods=("snapkv",), budgets=("8",)), "raise the budget"),
        (
            SweepGrid(methods=("snapkv",), budgets=tuple(str(b) for b in range(64, 321))),
            "has 258 points, the full cache among them; the limit is 256",
        ),
    ],
)
def test_a_wrong_grid_is_one_sentence(grid, sentence):
    with pytest.raises(ConfigError, match=sentence):
        grid.variants()


@given(st.integers(1, 100_000), st.integers(1, 255), st.integers(0, 1000))
def test_more_of_anything_costs_more(tokens, points, new):
    cost = estimate_seconds(tokens, points, new)
    assert cost < estimate_seconds(tokens + 1, points, new)
    assert cost < estimate_seconds(tokens, points + 1, new)
    assert cost < estimate_seconds(tokens, points, new + 1)
    assert estimate_seconds(tokens, points, new, 3 * DEFAULT_PARAMETERS) == pytest.approx(3 * cost)


def test_what_is_not_known_to_be_cheap_asks_first():
    request = GRID.request(CompareRequest(context="x", max_new_tokens=0))
    other = replace(request, model="another/model")
    cheap = sweep_cost(request, 100, is_counted=True)
    assert (cheap.must_ask, cheap.is_guess) == (False, False)
    guessed = sweep_cost(other, 100, is_counted=True)
    assert guessed.must_ask
    assert guessed.basis.endswith("a larger model takes longer")
    small = sweep_cost(other, 100, is_counted=True, parameters=DEFAULT_PARAMETERS // 2)
    assert (small.must_ask, small.seconds) == (False, cheap.seconds)
    bounded = replace(request, analysis=("bounds",))
    assert sweep_cost(bounded, 100, is_counted=True).seconds > cheap.seconds
    large = sweep_cost(other, 100, is_counted=True, parameters=1000 * DEFAULT_PARAMETERS)
    assert large.must_ask
    assert large.basis.endswith("times 1,000.0 for this model's size")


def test_alpha_optima_equal_the_literal_minimum_over_groups():
    result = RunResult(
        model=SWEPT_MODEL,
        variants=[
            swept_point("full", [0, 0, 0, 0]),
            swept_point("snapkv+critical:budget=64,alpha=0.5", [1, 2, 8, 8]),
            swept_point("snapkv+critical:budget=64,alpha=0.0", [4, 4, 3, 3]),
            swept_point("snapkv:budget=64", [9, 9, 9, 9]),
        ],
    )
    (found,) = alpha_optima(result)
    assert (found.spec, found.budget, found.alphas) == ("snapkv+critical", 64, (0.0, 0.5))
    assert found.best_fixed == 0.0
    assert found.head_alpha[0].tolist() == [0.5, 0.0]
    assert found.layer_alpha[0] == 0.0
    assert np.isnan(found.head_alpha[1]).all()
    assert found.layer_gain == 0.0
    assert found.head_gain == pytest.approx(1 - (3 + 6) / 14)


def test_answers_are_curves_of_their_own_and_unknown_ones_are_left_out():
    scored = replace(
        swept_point("snapkv:budget=64", [1, 1, 1, 1]),
        answer_found=False,
        answer_scores={"exact_match": 0.0, "token_f1": 0.5, "edit_similarity": 0.25},
    )
    result = RunResult(
        model=SWEPT_MODEL, variants=[scored, swept_point("snapkv:budget=128", [1, 1, 1, 1])]
    )
    (curve,) = curves(result)
    answers = {"answer": 0, "exact_match": 0, "token_f1": 0.5, "edit_similarity": 0.25}
    for key, value in answers.items():
        assert curve.values(result, FIGURES[key]) == [(64, value)]
    assert known_figures(result) == [f for f in SWEPT.values() if f.read(scored) is not None]
    assert {figure.key for figure in known_figures(result)} >= answers.keys()


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


def test_points_that_only_an_imported_run_can_have_are_on_no_curve():
    known, unknown = (
        swept_point("snapkv:budget=64", [1.0] * 4),
        swept_point("snapkv:budget=128", [2.0] * 4),
    )
    assert unknown.perturbation is not None
    assert unknown.receipt is not None
    nothing = replace(unknown, spec="adakv", receipt=replace(unknown.receipt, budget_tokens=0))
    unknown = replace(unknown, perturbation=replace(unknown.perturbation, kl=math.nan))
    result = RunResult(variants=[known, unknown, nothing], kind="sweep")
    (curve,) = curves(result)
    assert curve.points == ((64, 0), (128, 1))
    assert curve.values(result, FIGURES["kl"]) == [(64, 0.0)]


def test_points_of_equal_settings_are_one_curve_however_their_specs_are_written():
    written = (
        "snapkv+critical:budget=64",
        "snapkv+critical:alpha=0.25,budget=128",
        "snapkv+critical:kernel=7,alpha=0.25,budget=128",
        "snapkv+critical:kernel=7,alpha=0.5,budget=64",
        "snapkv+critical:kernel=5,budget=64",
    )
    result = RunResult(
        model=SWEPT_MODEL, variants=[swept_point(text, [1.0] * 4) for text in written]
    )
    assert [(curve.spec, curve.alpha, curve.points) for curve in curves(result)] == [
        ("snapkv+critical", 0.25, ((64, 0), (128, 1))),
        ("snapkv+critical:kernel=7,alpha=0.5", 0.5, ((64, 3),)),
        ("snapkv+critical:kernel=5", 0.25, ((64, 4),)),
    ]
    (optimum,) = alpha_optima(result)
    assert (optimum.spec, optimum.budget, optimum.alphas) == ("snapkv+critical", 64, (0.25, 0.5))


def test_settings_that_only_the_spec_of_an_imported_run_says_keep_curves_apart():
    texts = ("snapkv+critical:stage2=pooled,budget=64", "snapkv+critical:budget=64")
    bare = [replace(swept_point(text, [1.0] * 4), params={"alpha": 0.25}) for text in texts]
    assert len(curves(RunResult(variants=bare))) == 2


def test_a_method_that_writes_out_a_default_is_no_second_method():
    methods = ("snapkv+critical", "snapkv+critical:kernel=7", "snapkv:window=32", "snapkv")
    grid = SweepGrid(methods=methods, budgets=("64", "64.0", "10%"), alphas=("0.25", "0.250"))
    points = grid.variants()
    assert points == (
        "full",
        "snapkv+critical:budget=64,alpha=0.25",
        "snapkv+critical:budget=10%,alpha=0.25",
        "snapkv:budget=64,window=32",
        "snapkv:budget=10%,window=32",
    )
    assert grid.request(CompareRequest(context="x", max_new_tokens=0)).validate()
    mixed = ("snapkv+critical:budget=64", "snapkv+critical:kernel=7,alpha=0.25,budget=128")
    around = SweepGrid.around(mixed)
    assert (around.methods, around.budgets, around.alphas) == (
        ("snapkv+critical",),
        ("64", "128"),
        ("0.25",),
    )


def test_both_infinities_have_no_mean_and_no_warning():
    heads = np.array([[-math.inf, math.inf, 0.0]], np.float32)
    assert math.isnan(mean_head_l1(variant("snapkv", measured(heads, [0.0]))))
