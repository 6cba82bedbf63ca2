"""Charts of the diagnostics: which a run has, what they count and mark."""

import dataclasses

import numpy as np
import pytest

from ckv_core.request.identity import base_index
from ckv_core.results.chain import check_chain
from tests.factories.app import snapshot
from tests.factories.runs import QUERY_HEADS, analysed, done_result
from ui.charts.bounds import bounds_figure, sigma_figure, tightness_figure
from ui.charts.catalog import CHARTS, DIAGNOSTICS, PERTURBATION, figure_of
from ui.charts.heads import head_grid_figure
from ui.charts.layers import final_figure, head_layer_figure, layer_figure
from ui.charts.run_csv import analysis_csv
from ui.results import chart_views


def test_the_diagnostics_shows_only_where_there_is_data():
    assert chart_views.diagnostics_value(snapshot()) is None
    value = chart_views.diagnostics_value(snapshot(result=analysed()))
    assert [chart["name"] for chart in value["charts"]] == list(DIAGNOSTICS)


def test_a_run_without_measurements_says_why_there_is_no_chart():
    result = done_result()
    result.variants = [dataclasses.replace(v, perturbation=None) for v in result.variants]
    value = chart_views.perturbation_value(snapshot(state="failed", result=result))
    assert value["charts"] == []
    assert value["text"].endswith(".")


@pytest.mark.parametrize("name", [*PERTURBATION, *DIAGNOSTICS])
def test_every_choice_of_every_chart_can_be_drawn(name):
    result = analysed()
    for control in CHARTS[name].offered(result):
        for value, _ in control.options:
            figure = figure_of(result, name, {control.name: value})
            assert figure.data, (name, value)
            assert "n = " in figure.layout.title.subtitle.text


def test_the_fidelity_chart_crosses_where_the_first_choice_is_another():
    result = analysed()
    line, crosses, *others = figure_of(result, "fidelity", {}).data
    np.testing.assert_array_equal(line.x, [1, 2])
    np.testing.assert_array_equal(line.y, result.variants[1].analysis["forced_kl"])
    assert (list(crosses.x), list(crosses.y), crosses.marker.symbol) == ([2], [2.0], "x")
    assert len(others) == 2 * (len(result.variants) - 2)
    assert figure_of(done_result(), "fidelity", {}) is None


def test_a_choice_that_does_not_exist_is_passed_over():
    hostile = {"variant": "99", "quantity": "__class__", "against": "x"}
    assert figure_of(analysed(), "heads", hostile).data
    assert figure_of(analysed(), "nothing", {}) is None


def test_the_chain_is_counted_where_sigma_is_above_one_half():
    result = analysed()
    assert dataclasses.astuple(check_chain(result.variants[1])) == (12, 10, 0)
    broken = dict(result.variants[1].analysis)
    broken["theta"] = broken["theta"].copy()
    broken["theta"][0, 0] = -1  # not covered: sigma is 0.4
    broken["theta"][2, 3] = -1
    result.variants[1] = dataclasses.replace(result.variants[1], analysis=broken)
    assert check_chain(result.variants[1]).violations == 1
    assert "1 violations in 10 query heads" in bounds_figure(result, 1).layout.title.subtitle.text


def test_bounds_of_every_size_can_be_read_and_crosses_stand_below_them():
    figure = bounds_figure(analysed(), 1)
    assert figure.layout.yaxis.type == "log"
    values = np.concatenate([trace.y for trace in figure.data[:4]])
    assert np.nanmin(values) > 0  # the head that did not move has no place on this axis
    crosses = figure.data[4]
    assert (crosses.y < np.nanmin(values)).all()


def test_heads_that_the_theorem_leaves_out_are_marked_by_a_shape():
    for figure in (bounds_figure(analysed(), 1), sigma_figure(analysed(), 1)):
        crosses = [trace for trace in figure.data if trace.marker.symbol == "x"]
        assert [len(trace.x) for trace in crosses] == [2]
    assert "83.3%" in sigma_figure(analysed(), 1).layout.title.subtitle.text


def test_the_mass_kept_stands_above_the_mass_of_stage_1():
    lines = {trace.name: trace.y for trace in sigma_figure(analysed(), 1).data}
    np.testing.assert_allclose(lines["kept in all"] - lines["sigma, measured"], 0.08, rtol=1e-5)


def test_layers_against_the_base_are_its_reduction_and_ratio():
    result = analysed()
    moved = result.variants[1].perturbation
    half = dataclasses.replace(
        result.variants[2].perturbation, layer_hidden_l1=moved.layer_hidden_l1 / 2
    )
    result.variants[2] = dataclasses.replace(result.variants[2], perturbation=half)
    (control,) = [c for c in CHARTS["layers"].offered(result) if c.name == "against"]
    assert [value for value, _ in control.options] == ["value", "reduction", "ratio"]
    (line,) = figure_of(result, "layers", {"against": "reduction"}).data
    assert line.name == "SnapKV + CriticalKV"
    np.testing.assert_array_equal(line.y, moved.layer_hidden_l1 / 2)
    (line,) = figure_of(result, "layers", {"against": "ratio"}).data
    np.testing.assert_array_equal(line.y, [0.5] * 3)
    del result.variants[1]
    assert not any(c.name == "against" for c in CHARTS["layers"].offered(result))
    assert not layer_figure(result, "hidden_l1", "ratio").data


def test_tightness_is_the_sorted_ratio():
    curve = tightness_figure(analysed()).data[0]
    assert np.all(np.diff(curve.x) >= 0)
    assert curve.y[-1] == 1
    assert curve.x.max() == pytest.approx(11 / 23)


def test_the_bounds_can_be_read_per_kv_head():
    result = analysed()
    bounds = figure_of(result, "bounds", {"variant": "1", "per": "kv_head"})
    assert bounds.layout.title.subtitle.text == "0 violations in 5 KV heads with sigma > 0.5; n = 6"
    moved = result.variants[1].perturbation.head_l1
    by_loop = sorted(float(row[at] + row[at + 1]) for row in moved for at in (0, 2))
    np.testing.assert_allclose(bounds.data[0].y, np.where(np.array(by_loop) > 0, by_loop, np.nan))
    assert bounds.data[4].name == "sigma at most 0.5: 1 KV heads"
    curve = figure_of(result, "tightness", {"per": "kv_head"}).data[0]
    np.testing.assert_allclose(curve.x, [x / (2 * x + 2) for x in by_loop], rtol=1e-6)


def test_kv_heads_are_offered_only_where_query_heads_share_them():
    result = analysed()
    names = [control.name for control in CHARTS["bounds"].offered(result)]
    assert names == ["variant", "per"]
    result.model = dataclasses.replace(result.model, kv_heads=QUERY_HEADS)
    assert CHARTS["tightness"].offered(result) == []
    figure = figure_of(result, "tightness", {"per": "kv_head"})
    assert "n = 12 query heads" in figure.layout.title.subtitle.text


def test_wins_count_the_heads_below_the_base():
    figure = head_grid_figure(analysed(), 2, "head_l1", "wins")
    assert set(np.unique(figure.data[0].z)) == {-1, 1}
    assert "9 of n = 12 heads" in figure.layout.title.subtitle.text


def test_another_quantity_takes_its_base_from_the_run():
    result = analysed()
    assert base_index(result.variants, 2) == 1
    assert base_index(result.variants, 1) is None
    assert np.all(head_grid_figure(result, 2, "theta", "difference").data[0].z == 0)
    params = {**result.variants[1].params, "window": 9}
    result.variants[1] = dataclasses.replace(result.variants[1], params=params)
    assert base_index(result.variants, 2) is None


def test_relative_hidden_l1_has_a_gap_where_the_size_is_zero():
    line = layer_figure(analysed(), "hidden_relative").data[0]
    np.testing.assert_array_equal(line.y, np.array([0.1, np.nan, 0.35], np.float32))


def test_final_bars_know_both_sides_of_the_norm():
    assert "before" in final_figure(analysed()).layout.title.text
    after = final_figure(analysed(), "normed_l1")
    assert "after" in after.layout.title.text
    assert list(after.data[0].x) == [0.5, 0.5]


def test_oracles_are_lines_beside_the_methods():
    names = [trace.name for trace in head_layer_figure(analysed(), oracles_of=1).data]
    assert names == ["SnapKV", "SnapKV + CriticalKV", "Oracle: true attention"]


def test_the_csv_holds_every_measured_value():
    lines = analysis_csv(analysed()).splitlines()
    per_variant = 9 * 12 + 3 * 3 + 1 + 3 * 2
    assert len(lines) == 1 + 2 * per_variant + 12  # and CriticalKV's own base
    assert '1,"snapkv:budget=4","sigma_stage1","1",0,1,"","",0.4' in lines


def test_alphas_of_heads_are_drawn_only_where_a_variant_chose_them():
    names = [chart["name"] for chart in chart_views.perturbation_value(snapshot())["charts"]]
    assert "alphas" not in names
    result = analysed()
    alphas = np.array([[0, 0.35], [np.nan, np.nan], [1, 0]], np.float32)
    found = {**result.variants[2].analysis, "head_alpha": alphas}
    result.variants[2] = dataclasses.replace(result.variants[2], analysis=found)
    names = [
        chart["name"] for chart in chart_views.perturbation_value(snapshot(result=result))["charts"]
    ]
    assert "alphas" in names
    figure = figure_of(result, "alphas", {"variant": "1"})  # which has none: the other is taken
    np.testing.assert_array_equal(figure.data[0].z, alphas)
    assert figure.layout.title.subtitle.text == "n = 4 KV heads, 50% of them at 0"
    band = figure.data[-1]
    assert (np.nanmin(band.y), np.nanmax(band.y), band.fillpattern.shape) == (0.5, 1.5, "/")
    assert '2,"snapkv+critical:budget=4","head_alpha","1",0,"",1,"",0.35\n' in analysis_csv(result)
