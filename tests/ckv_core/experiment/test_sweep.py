"""Laws of what is read from a sweep's points: curves, and what oracles reach."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.experiment.points import with_bases
from ckv_core.experiment.runs import read_results
from ckv_core.experiment.stats import Match, matching_budget
from ckv_core.experiment.sweep import (
    Saving,
    curves,
    matched_metrics,
    savings,
    sweep_points,
)
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import METRICS
from ckv_core.records.records import RoundingFloor, VariantResult
from ckv_core.records.run_request import RunRequest
from tests.factories.runs import SWEPT_MODEL, swept_point
from tests.factories.scored import plain_samples, scored


def sweep_of(*variants: VariantResult) -> RunResult:
    return RunResult(model=SWEPT_MODEL, variants=[*variants], kind="sweep")


def moved(text: str, l1: float = 1.0) -> VariantResult:
    """A point all of whose heads moved so far."""
    return swept_point(text, [l1] * 4)


def test_answers_are_curves_of_their_own_and_unknown_ones_are_left_out():
    scores = {"exact_match": 0.0, "token_f1": 0.5, "edit_similarity": 0.25}
    scored = replace(moved("snapkv:budget=64"), answer_found=False, answer_scores=scores)
    result = sweep_of(scored, moved("snapkv:budget=128"))
    (curve,) = curves(result)
    answers = {"answer": 0} | scores
    for key, value in answers.items():
        assert [(b.amount, mean.mean) for b, mean in curve.means(key)] == [(64, value)]
    matched = {metric.key for metric in matched_metrics(result)}
    assert {"token_f1", "edit_similarity", "head"} <= matched
    assert not matched & {"answer", "exact_match", "sigma_over_half", "agreement"}


def test_points_that_only_an_imported_run_can_have_are_on_no_curve():
    known, unknown = moved("snapkv:budget=64"), moved("snapkv:budget=128", 2)
    nothing = replace(unknown, spec="adakv", receipt=replace(unknown.receipt, budget_tokens=0))
    unknown = replace(unknown, perturbation=replace(unknown.perturbation, kl=math.nan))
    (curve,) = curves(sweep_of(known, unknown, nothing))
    assert [(budget.amount, row.index) for budget, row in curve.rows] == [(64, 0), (128, 1)]
    assert [(b.amount, mean.mean) for b, mean in curve.means("kl")] == [(64, 0.0)]


@pytest.mark.parametrize(
    ("budgets", "unit", "amounts"),
    [
        (("64", "10%"), "tokens", [8, 64]),
        (("64", "32"), "tokens", [32, 64]),
        (("20%", "10%"), "percent", [10, 20]),
        (("1MiB", "2MiB"), "mib", [1, 2]),
    ],
)
def test_budgets_of_one_sample_share_an_axis(budgets, unit, amounts):
    tokens = {"64": 64, "32": 32, "10%": 8, "20%": 16, "1MiB": 40, "2MiB": 80}
    points = [moved(f"snapkv:budget={budget}") for budget in budgets]
    resolved = [
        replace(point, receipt=replace(point.receipt, budget_tokens=tokens[budget]))
        for point, budget in zip(points, budgets, strict=True)
    ]
    (curve,) = curves(sweep_of(*resolved))
    assert (curve.unit, [budget.amount for budget, _ in curve.rows]) == (unit, amounts)


def test_all_points_name_budgets_as_they_were_requested_and_tokens_beside_them():
    """As the grid does, also where units are mixed; sorted by what they share."""
    resolved = [moved("snapkv:budget=10%"), moved("snapkv:budget=64")]
    resolved = [
        replace(each, receipt=replace(each.receipt, budget_tokens=tokens))
        for each, tokens in zip(resolved, (8, 64), strict=True)
    ]
    cells = [row["cells"]["budget"] for row in sweep_points(sweep_of(*resolved)).value()["rows"]]
    assert [(each["text"], each.get("more", "")) for each in cells] == [
        ("10 %", "8 tokens"),
        ("64 tokens", ""),
    ]
    assert [each["value"] for each in cells] == [8, 64]


def test_points_of_equal_settings_are_one_curve_however_their_specs_are_written():
    written = (
        "snapkv+critical:budget=64",
        "snapkv+critical:alpha=0.25,budget=128",
        "snapkv+critical:kernel=7,alpha=0.25,budget=128",
        "snapkv+critical:kernel=7,alpha=0.5,budget=64",
        "snapkv+critical:kernel=5,budget=64",
    )
    result = sweep_of(*map(moved, written))
    found = [(c.first.alpha, [(b.amount, row.index) for b, row in c.rows]) for c in curves(result)]
    assert found == [(0.25, [(64, 0), (128, 2)]), (0.5, [(64, 3)]), (0.25, [(64, 4)])]


# --- laws of the budget that one curve needs to be as good as another, and of how it is said ---


def near(budget: float) -> Match:
    return Match(pytest.approx(budget), "found")


@pytest.mark.parametrize(
    ("points", "target", "match"),
    [
        # Linear in the budget.
        ([(64, 8.0), (256, 4.0), (512, 1.0)], 6.0, near(160)),
        ([(64, 8.0), (256, 4.0), (512, 1.0)], 4.0, near(256)),
        ([(64, 8.0), (256, 4.0), (512, 1.0)], 8.0, Match(64, "found")),
        # Outside the measured range nothing is guessed.
        ([(64, 8.0), (256, 4.0)], 9.0, Match(None, "better")),
        ([(64, 8.0), (256, 4.0)], 3.0, Match(None, "worse")),
        ([], 1.0, Match(None, "unknown")),
        # A curve that falls back matches where it stays good.
        ([(64, 1.0), (128, 9.0), (256, 1.0)], 5.0, near(192)),
        ([(64, 3.0), (256, 0.0)], 0.0, near(256)),
    ],
)
def test_the_matching_budget_of_a_distance(points, target, match):
    assert matching_budget(points, target) == match


def test_a_share_of_0_asks_for_nothing():
    points = [(64, 0.0), (256, 0.5)]
    assert matching_budget(points, 0.0, lower=False) == Match(None, "nothing")
    assert matching_budget([], 0.0, lower=False).outcome == "unknown"


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=6), st.floats(0.1, 100))
def test_a_match_has_the_targets_value_where_higher_is_better_too(values, target):
    points = [(2 ** (5 + i), value) for i, value in enumerate(values)]
    mirrored = [(budget, -value) for budget, value in points]
    assert matching_budget(points, target) == matching_budget(mirrored, -target, lower=False)


def moving(heads: dict[str, float]) -> RunResult:
    """Points by SPEC with this L1 in every head."""
    points = [swept_point(spec, [value] * 4) for spec, value in heads.items()]
    return RunResult(model=SWEPT_MODEL, variants=points)


def agreeing(shares: dict[str, dict[int, float | None]]) -> RunResult:
    """Points by method and budget whose texts agree so far with the full cache's."""
    points = [
        replace(swept_point(f"{name}:budget={budget}", [1] * 4), agreement=share)
        for name, by_budget in shares.items()
        for budget, share in by_budget.items()
    ]
    return RunResult(model=SWEPT_MODEL, variants=points)


def saved(result: RunResult, target: int = 0, metric: str = "agreement") -> list[Saving]:
    """What the other curves need to match this one."""
    lines = curves(result)
    others = [line for line in lines if line is not lines[target]]
    return [each for line in others for each in savings(line, lines[target], metric)]


def test_savings_compare_every_other_curve_with_each_point():
    heads = {"full": 0, "snapkv:budget=64": 8, "snapkv:budget=256": 4}
    first, second = saved(moving(heads | {"adakv:budget=64": 6, "adakv:budget=256": 2}), 0, "head")
    assert (first.curve.first.label, first.target.first.label) == ("AdaKV", "SnapKV")
    assert (first.match, first.share) == (Match(None, "better"), None)
    assert second.match == near(160)
    assert second.share == pytest.approx(0.375)


def test_sigma_is_read_off_defined_heads_and_more_agreement_needs_less_budget():
    result = agreeing({"snapkv": {64: 0.25, 256: 0.5}, "adakv": {64: 0.25, 256: 0.75}})
    sigma = np.array([[0.4, 0.6, 0.7, 0.8], [np.nan] * 4], np.float32)
    result.variants = [replace(v, analysis={"sigma_stage1": sigma}) for v in result.variants]
    assert METRICS["sigma_over_half"].read(result.variants[0]) == 0.75
    assert [each.match for each in saved(result)] == [Match(64, "found"), near(160)]
    assert [each.match.outcome for each in saved(result, 1)] == ["found", "worse"]
    flat = saved(result, 0, "sigma_over_half")
    assert [each.match.outcome for each in flat] == ["better", "better"]


def test_what_no_setting_reaches_is_nothing_to_match_and_no_budget():
    result = agreeing(
        {"snapkv": {64: 0.0, 128: 0.0, 256: 0.5}, "adakv": {64: 0.0, 128: 0.25, 256: 0.25}}
    )
    found = saved(result)
    assert [each.match.outcome for each in found] == ["nothing", "nothing", "worse"]
    assert [each.text for each in found] == [*["nothing to match"] * 2, "over 256 tokens"]
    back = [each.text for each in saved(result, 1)]
    assert back == ["nothing to match", "192 tokens, 50 % more", "192 tokens, 25 % less"]


def test_no_budget_matches_a_point_that_only_rounding_moves():
    result = moving({"snapkv:budget=64": 9, "snapkv:budget=256": 1, "adakv:budget=64": 5})
    result.floor = RoundingFloor(layer_hidden_l1=np.array([0, 4], np.float32), kl=0.0)
    found = saved(result, 0, "final")
    assert [each.match.outcome for each in found] == ["better", "rounding"]
    assert found[1].text == "only rounding"
    assert "rounding" not in [each.match.outcome for each in saved(result, 0, "head")]


# --- of many samples, by the score -------------------------------------------------------------

BUDGETS = ("10%", "20%", "50%")
STUDY = RunRequest(
    name="made up",
    data={"file": "x"},
    variants=("snapkv", "snapkv+critical"),
    budgets=BUDGETS,
)


def budgets_saved(samples, results) -> list[Saving]:
    """What CriticalKV needs for the score of SnapKV at each of its budgets."""
    points = read_results(STUDY, samples, results)
    pairs = with_bases(points.curves)
    return [each for curve, base in pairs for each in savings(curve, base, "score")]


Scores = Mapping[str, list[list[float]]]  # of a variant, by budget and sample


def of_samples(scores: Scores) -> list[Saving]:
    count = len(next(iter(scores.values()))[0])
    results = [
        scored(f"s{at}", variant, budget, values[at])
        for variant, own in scores.items()
        for budget, values in zip(BUDGETS, own, strict=True)
        for at in range(count)
    ]
    return budgets_saved(plain_samples(count), results)


def test_the_budget_is_linear_between_those_tried_and_named_outside_them():
    found = of_samples(
        {
            "snapkv": [[0.1] * 3, [0.6] * 3, [0.9] * 3],
            "snapkv+critical": [[0.2] * 3, [0.2, 0.4, 0.6], [0.7, 0.8, 0.9]],
        }
    )
    assert [str(each.target_budget) for each in found] == list(BUDGETS)
    assert [each.match.outcome for each in found] == ["better", "found", "worse"]
    assert found[1].match.budget == pytest.approx(20 + 0.5 * 30)
    assert found[1].value == pytest.approx(0.6)
    assert [(each.n, each.low.outcome) for each in found] == [(3, "better")] * 3
    assert [each.high.outcome for each in found] == ["worse"] * 3  # of 3 samples


def test_only_sources_that_both_have_at_every_budget_count():
    scores = {"snapkv": [[0.0, 1.0]] * 3, "snapkv+critical": [[0.0, 1.0]] * 3}
    assert [each.n for each in of_samples(scores)] == [2, 2, 2]
    samples = plain_samples(2)
    results = [
        scored(sample.id, variant, budget, 0.5)
        for sample in samples
        for variant in STUDY.variants
        for budget in BUDGETS
        if (sample.id, budget, variant) != ("s0", "20%", "snapkv")
    ]
    assert [each.n for each in budgets_saved(samples, results)] == [1, 1, 1]
    assert budgets_saved(samples, results[:2]) == []


def test_a_budget_at_which_every_sample_failed_is_left_out():
    done = [scored("s0", v, budget, 0.5) for v in STUDY.variants for budget in BUDGETS]
    results = [
        replace(each, state="failed", score=None) if each.budget == "10%" else each for each in done
    ]
    found = budgets_saved(plain_samples(1), results)
    assert [str(each.target_budget) for each in found] == ["20%", "50%"]
    assert {tuple(map(str, each.tried)) for each in found} == {("20%", "50%")}
