"""Laws of the budget that one curve needs to be as good as another, and of how it is said."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.analysis.sweep import curves
from ckv_core.analysis.sweep_savings import MEANINGS, Match, matching_budget, savings
from ckv_core.results.events import RunResult
from ckv_core.results.figures import FIGURES
from ckv_core.results.records import RoundingFloor, VariantResult
from tests.factories.runs import SWEPT_MODEL, swept_point


def test_the_matching_budget_is_linear_in_log_budget():
    points = [(64, 8.0), (256, 4.0), (512, 1.0)]
    found = matching_budget(points, 6.0)
    assert found.budget == pytest.approx(math.sqrt(64 * 256))
    assert matching_budget(points, 4.0).budget == pytest.approx(256)
    assert matching_budget(points, 8.0).budget == 64


def test_outside_the_measured_range_nothing_is_guessed():
    points = [(64, 8.0), (256, 4.0)]
    assert (matching_budget(points, 9.0).budget, matching_budget(points, 9.0).outcome) == (
        None,
        "better",
    )
    assert (matching_budget(points, 3.0).budget, matching_budget(points, 3.0).outcome) == (
        None,
        "worse",
    )
    assert matching_budget([], 1.0).outcome == "unknown"


def test_a_curve_that_falls_back_matches_where_it_stays_good():
    assert matching_budget([(64, 1.0), (128, 9.0), (256, 1.0)], 5.0).budget == pytest.approx(
        math.sqrt(128 * 256)
    )


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=6), st.floats(0.1, 100))
def test_a_match_has_the_targets_value_where_higher_is_better_too(values, target):
    points = [(2 ** (5 + i), value) for i, value in enumerate(values)]
    mirrored = [(budget, -value) for budget, value in points]
    assert matching_budget(points, target) == matching_budget(mirrored, -target, lower=False)


def test_savings_compare_every_other_curve_with_each_point():
    result = RunResult(
        model=SWEPT_MODEL,
        variants=[
            swept_point("full", [0, 0, 0, 0]),
            swept_point("snapkv:budget=64", [8, 8, 8, 8]),
            swept_point("snapkv:budget=256", [4, 4, 4, 4]),
            swept_point("adakv:budget=64", [6, 6, 6, 6]),
            swept_point("adakv:budget=256", [2, 2, 2, 2]),
        ],
    )
    snapkv, adakv = curves(result)
    assert [curve.spec for curve in (snapkv, adakv)] == ["snapkv", "adakv"]
    first, second = savings(result, snapkv, FIGURES["head"])
    assert (first.match.outcome, first.share) == ("better", None)
    assert second.match.budget == pytest.approx(128)
    assert second.share == pytest.approx(0.5)


def test_sigma_is_read_off_defined_heads_and_more_agreement_needs_less_budget():
    def measured(text: str, agreement: float) -> VariantResult:
        sigma = np.array([[0.4, 0.6, 0.7, 0.8], [np.nan] * 4], np.float32)
        plain = swept_point(text, [1, 1, 1, 1])
        return replace(plain, agreement=agreement, analysis={"sigma_stage1": sigma})

    result = RunResult(
        model=SWEPT_MODEL,
        variants=[
            measured("snapkv:budget=64", 0.25),
            measured("snapkv:budget=256", 0.5),
            measured("adakv:budget=64", 0.25),
            measured("adakv:budget=256", 0.75),
        ],
    )
    assert FIGURES["sigma_over_half"].read(result.variants[0]) == 0.75
    snapkv, adakv = curves(result)
    low, high = savings(result, snapkv, FIGURES["agreement"])
    assert (low.match.budget, high.match.budget) == (64, pytest.approx(128))
    back = savings(result, adakv, FIGURES["agreement"])
    assert [each.match.outcome for each in back] == ["found", "worse"]
    flat = savings(result, snapkv, FIGURES["sigma_over_half"])
    assert [each.match.outcome for each in flat] == ["better", "better"]


def agreeing(text: str, agreement: float | None) -> VariantResult:
    return replace(swept_point(text, [1, 1, 1, 1]), agreement=agreement)


def test_a_share_of_0_asks_for_nothing_but_a_distance_of_0_does():
    points = [(64, 0.0), (256, 0.5)]
    assert matching_budget(points, 0.0, lower=False) == Match(None, "nothing")
    assert matching_budget([(64, 3.0), (256, 0.0)], 0.0).budget == pytest.approx(256)
    assert matching_budget([], 0.0, lower=False).outcome == "unknown"


def test_what_no_setting_reaches_is_nothing_to_match_and_no_budget():
    shares = {"snapkv": (0.0, 0.0, 0.5), "adakv": (0.0, 0.25, 0.25)}
    result = RunResult(
        model=SWEPT_MODEL,
        variants=[
            agreeing(f"{name}:budget={budget}", value)
            for name, values in shares.items()
            for budget, value in zip((64, 128, 256), values, strict=True)
        ],
    )
    snapkv, adakv = curves(result)
    found = savings(result, snapkv, FIGURES["agreement"])
    assert [each.match.outcome for each in found] == ["nothing", "nothing", "worse"]
    assert [each.text for each in found] == ["nothing to match", "nothing to match", "over 256"]
    assert found[2].full_text == "over 256 (not reached with the budgets tried)"
    back = savings(result, adakv, FIGURES["agreement"])
    assert [each.text for each in back] == ["nothing to match", "181, 41 % more", "181, 29 % less"]


def test_no_budget_matches_a_point_that_only_rounding_moves():
    heads = {"snapkv:budget=64": 9.0, "snapkv:budget=256": 1.0, "adakv:budget=64": 5.0}
    result = RunResult(
        model=SWEPT_MODEL, variants=[swept_point(s, [v] * 4) for s, v in heads.items()]
    )
    snapkv, _ = curves(result)
    result.floor = RoundingFloor(layer_hidden_l1=np.array([0, 4], np.float32), kl=0.0)
    found = savings(result, snapkv, FIGURES["final"])
    assert [each.match.outcome for each in found] == ["better", "rounding"]
    assert found[1].full_text == f"only rounding ({MEANINGS['rounding']})"
    heads_only = savings(result, snapkv, FIGURES["head"])
    assert "rounding" not in [each.match.outcome for each in heads_only]


def test_what_the_smallest_budget_reaches_is_said_to_be_an_upper_limit():
    specs = ("snapkv:budget=64", "snapkv:budget=256", "adakv:budget=64", "adakv:budget=256")
    result = RunResult(model=SWEPT_MODEL, variants=[agreeing(spec, 1.0) for spec in specs])
    snapkv, _ = curves(result)
    found = savings(result, snapkv, FIGURES["agreement"])
    said = "64 or less (already reached at the smallest budget)"
    assert [each.full_text for each in found] == [said, said]
    assert {each.match.outcome for each in found} <= set(MEANINGS)


def test_only_budgets_whose_value_is_known_count_as_tried():
    result = RunResult(
        model=SWEPT_MODEL,
        variants=[
            agreeing("snapkv:budget=64", 0.5),
            agreeing("adakv:budget=64", 0.25),
            agreeing("adakv:budget=256", None),
            agreeing("streaming_llm:budget=64", None),
        ],
    )
    adakv, streaming = savings(result, curves(result)[0], FIGURES["agreement"])
    assert adakv.full_text == "over 64 (not reached with the budgets tried)"
    assert (streaming.match.outcome, streaming.full_text) == ("unknown", "")
