"""The hidden L1 by layer over several runs: its lines, bands, choices and file."""

import csv
import dataclasses
import io

import numpy as np
import pytest

from ckv_core.analysis.intervals import MIN_PROMPTS, mean_interval
from tests.factories.runs import Swept
from tests.ui.aggregate.test_aggregate import CRITICAL, runs_of
from ui.aggregate.chosen import take_together
from ui.aggregate.routes import TABLES
from ui.charts.aggregate import AGGREGATE_CHARTS
from ui.results.chart_views import aggregate_value

CHART = AGGREGATE_CHARTS["layers"]
NAME = "SnapKV + CriticalKV, alpha 0.25"
PLAIN = "snapkv:budget=64"


def lines_of(figure):
    return {trace.name: trace for trace in figure.data if trace.showlegend is not False}


def hidden(found, spec: str):
    """[prompts, layers] of one variant."""
    (member,) = [each for each in found.members if each.spec == spec]
    return np.stack([each.perturbation.layer_hidden_l1 for each in member.joined.variants])


def test_a_line_is_the_mean_of_each_layer_and_its_band_the_interval():
    found = take_together(runs_of(MIN_PROMPTS))
    figure = CHART.figure(found, {"budget": "64"})
    assert figure.layout.title.subtitle.text == "mean and 95 % interval, n = 10 prompts"
    assert list(lines_of(figure)) == [
        "SnapKV",
        *(f"SnapKV + CriticalKV, alpha {alpha}" for alpha in ("0", "0.25", "0.5")),
    ]
    line, values = lines_of(figure)[NAME], hidden(found, CRITICAL)
    np.testing.assert_allclose(line.y, values.mean(axis=0), rtol=1e-6)
    low, high = [t for t in figure.data if t.legendgroup == line.legendgroup and t is not line]
    for at in range(Swept.LAYERS):
        alone = mean_interval(values[:, at].tolist())
        assert (low.y[at], high.y[at]) == pytest.approx((alone.low, alone.high), rel=1e-3)
    assert high.fill == "tonexty"
    (member,) = [each for each in found.members if each.spec == CRITICAL]
    assert line.line.color == found.looks[member.joined.place].color


def test_of_too_few_prompts_there_are_lines_without_bands():
    figure = CHART.figure(take_together(runs_of(2)), {})
    assert len(figure.data) == len(lines_of(figure)) == 4
    assert "too few prompts" in figure.layout.title.subtitle.text


def test_the_reduction_is_the_base_minus_the_variant():
    found = take_together(runs_of(3))
    figure = CHART.figure(found, {"quantity": "reduction", "budget": "64"})
    assert "SnapKV" not in lines_of(figure)
    expected = (hidden(found, PLAIN) - hidden(found, CRITICAL)).mean(axis=0)
    np.testing.assert_allclose(lines_of(figure)[NAME].y, expected, rtol=1e-5)


def test_variants_of_one_budget_share_a_chart_and_a_base_is_needed_for_a_reduction():
    runs = runs_of(2)
    quantity, budget = CHART.offered(take_together(runs))
    assert [value for value, _ in quantity.options] == ["hidden", "reduction"]
    assert [value for value, _ in budget.options] == [str(each) for each in Swept.BUDGETS]
    for run in runs:
        run.result.variants = [v for v in run.result.variants if v.spec != PLAIN]
    without = take_together(runs)
    figure = CHART.figure(without, {"quantity": "reduction", "budget": "64"})
    assert not figure.data
    assert "Not measured" in figure.layout.annotations[0].text
    for run in runs:
        run.result.variants = [v for v in run.result.variants if v.critical]
    quantity, _ = CHART.offered(take_together(runs))
    assert [value for value, _ in quantity.options] == ["hidden"]


def test_the_file_holds_what_the_chart_draws():
    found = take_together(runs_of(MIN_PROMPTS))
    rows = list(csv.DictReader(io.StringIO(TABLES["layers"](found))))
    for kind, title in CHART.offered(found)[0].options:
        figure = CHART.figure(found, {"quantity": kind, "budget": "64"})
        own = [row for row in rows if (row["spec"], row["figure"]) == (CRITICAL, title)]
        assert [row["layer"] for row in own] == [str(at) for at in range(Swept.LAYERS)]
        np.testing.assert_allclose(
            [float(row["mean"]) for row in own], lines_of(figure)[NAME].y, rtol=1e-6
        )
        assert {row["prompts"] for row in own} == {"10"}
        assert all(row["low"] and row["high"] for row in own)


def test_runs_without_measurements_have_no_such_chart():
    runs = runs_of(2)
    for run in runs:
        run.result.variants = [
            dataclasses.replace(variant, perturbation=None) for variant in run.result.variants
        ]
    found = take_together(runs)
    assert "layers" not in {chart["name"] for chart in aggregate_value(["a", "b"], found)["charts"]}
    assert CHART.figure(found, {}) is None
