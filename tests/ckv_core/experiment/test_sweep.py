"""Laws of what is read from a sweep's points: curves, and what oracles reach."""

import math
from dataclasses import replace

import pytest

from ckv_core.experiment.sweep import curves, matched_metrics
from ckv_core.records.events import RunResult
from ckv_core.records.records import VariantResult
from tests.factories.runs import SWEPT_MODEL, swept_point


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
    [(("64", "10%"), "tokens", [8, 64]), (("1MiB", "2MiB"), "mib", [1, 2])],
)
def test_budgets_of_one_sample_share_an_axis(budgets, unit, amounts):
    tokens = {"64": 64, "10%": 8, "1MiB": 40, "2MiB": 80}
    points = [moved(f"snapkv:budget={budget}") for budget in budgets]
    resolved = [
        replace(point, receipt=replace(point.receipt, budget_tokens=tokens[budget]))
        for point, budget in zip(points, budgets, strict=True)
    ]
    (curve,) = curves(sweep_of(*resolved))
    assert (curve.unit, [budget.amount for budget, _ in curve.rows]) == (unit, amounts)


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
