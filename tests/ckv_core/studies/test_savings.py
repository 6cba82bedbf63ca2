"""Budgets of equal score, against lines drawn by hand."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ckv_core.studies.reading import read_results
from ckv_core.studies.records import Point, Study
from ckv_core.studies.savings import BudgetSaved, budgets_saved
from tests.factories.scored import plain_samples, scored

BUDGETS = ("10%", "20%", "50%")
STUDY = Study(
    name="made up",
    data={"file": "x"},
    variants=("snapkv", "snapkv+critical"),
    budgets=BUDGETS,
)
Scores = Mapping[str, list[list[float]]]  # of a variant, by budget and sample


def saved(scores: Scores) -> list[BudgetSaved]:
    count = len(next(iter(scores.values()))[0])
    results = [
        scored(f"s{at}", variant, budget, values[at])
        for variant, own in scores.items()
        for budget, values in zip(BUDGETS, own, strict=True)
        for at in range(count)
    ]
    return budgets_saved(read_results(STUDY, plain_samples(count), results))


def test_the_budget_is_linear_between_those_tried_and_named_outside_them():
    found = saved(
        {
            "snapkv": [[0.1] * 3, [0.6] * 3, [0.9] * 3],
            "snapkv+critical": [[0.2] * 3, [0.4] * 3, [0.8] * 3],
        }
    )
    assert [each.target for each in found] == [Point("snapkv", budget) for budget in BUDGETS]
    assert [each.needed.outcome for each in found] == ["better", "found", "worse"]
    assert found[1].needed.budget == pytest.approx(20 + 0.5 * 30)
    assert found[1].score == pytest.approx(0.6)
    assert [(each.n, each.low.outcome) for each in found] == [(3, "better")] * 3
    assert [each.high.outcome for each in found] == ["worse"] * 3  # of 3 samples


def test_a_score_of_0_asks_for_nothing():
    found = saved({"snapkv": [[0.0] * 12] * 3, "snapkv+critical": [[0.5] * 12] * 3})
    assert {(each.needed.outcome, each.low, each.high) for each in found} == {
        ("nothing", None, None)
    }
    rare = [0.0] * 11 + [1.0]  # about every third time nobody is drawn
    found = saved({"snapkv": [rare] * 3, "snapkv+critical": [[0.0] * 12, [0.0] * 12, [1.0] * 12]})
    assert found[0].low is not None
    assert found[0].low.outcome == "better"


def test_only_sources_that_both_have_at_every_budget_count():
    scores = {"snapkv": [[0.0, 1.0]] * 3, "snapkv+critical": [[0.0, 1.0]] * 3}
    assert [each.n for each in saved(scores)] == [2, 2, 2]
    samples = plain_samples(2)
    results = [
        scored(sample.id, variant, budget, 0.5)
        for sample in samples
        for variant in STUDY.variants
        for budget in BUDGETS
        if (sample.id, budget, variant) != ("s0", "20%", "snapkv")
    ]
    assert [each.n for each in budgets_saved(read_results(STUDY, samples, results))] == [1, 1, 1]
    assert budgets_saved(read_results(STUDY, samples, results[:2])) == []


def test_a_budget_at_which_every_sample_failed_is_left_out():
    done = [scored("s0", v, budget, 0.5) for v in STUDY.variants for budget in BUDGETS]
    results = [
        replace(each, state="failed", score=None) if each.budget == "10%" else each for each in done
    ]
    found = budgets_saved(read_results(STUDY, plain_samples(1), results))
    assert [each.target.budget for each in found] == ["20%", "50%"]
    assert {each.budgets for each in found} == {("20%", "50%")}


def test_a_points_head_l1_is_the_mean_over_the_samples_that_have_one():
    moved = {"s0": 1.0, "s1": 2.0, "s2": None}
    results = [scored(at, "snapkv", "10%", 1.0, head_l1=value) for at, value in moved.items()]
    read = read_results(STUDY, plain_samples(3), results)
    (row,) = (row for row in read.rows if row.point == Point("snapkv", "10%"))
    assert row.head_l1 == 1.5
