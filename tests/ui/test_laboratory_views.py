"""The laboratory on screen: which charts a run has, what they count, strips and follow-ups."""

import dataclasses

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from ckv_core.errors import ConfigError
from ckv_core.metrics.chain import check_chain
from ckv_core.records import Candidate, FollowUp, ForcedStep
from tests.ui.page_fakes import (
    LAYERS,
    QUERY_HEADS,
    SLUG,
    FakeServices,
    done_result,
    request,
    snapshot,
)
from ui import chart_views, views
from ui.charts.analysis_table import analysis_csv
from ui.charts.bounds import bounds_figure, sigma_figure, tightness_figure
from ui.charts.catalog import CHARTS, LABORATORY, PERTURBATION, figure_of
from ui.charts.heads import head_grid_figure
from ui.charts.layers import final_figure, head_layer_figure, layer_figure
from ui.charts.measured import base_index
from ui.figure_routes import figure_routes
from ui.forms import FormValues, variant_choices
from ui.summary import summary_value

SHAPE = (LAYERS, QUERY_HEADS)


def bounds(head_l1: np.ndarray) -> dict[str, np.ndarray]:
    sigma = np.full(SHAPE, 0.9, np.float32)
    sigma[0, :2] = 0.4
    return {
        "sigma_stage1": sigma,
        "sigma_oracle": sigma + np.float32(0.05),
        "value_mass": head_l1 * 5 + 1,
        "theta": head_l1 * 2 + 1,
        "theta_hat": head_l1 * 3 + 1,
        "theta_relaxed": head_l1 * 4 + 1,
        "oracle_attention_l1": head_l1 / 2,
        "hidden_norm_l1": np.array([10, 0, 10], np.float32),
        "normed_l1": np.array([0.5], np.float32),
        "forced_top1": np.array([1, 0], np.float32),
        "forced_kl": np.array([0.001, 2.0], np.float32),
        "forced_rank": np.array([1, 7], np.float32),
    }


def analysed():
    """A finished run whose evicting variants have every part of the laboratory."""
    result = done_result()
    step = ForcedStep((Candidate(1, "one", 0.9),), (Candidate(2, "<b>", 0.5),))
    answer = FollowUp(
        question="And then?",
        text="x",
        token_ids=(1,),
        token_texts=("x",),
        stopped="eos",
        agreement=0.5,
        first_difference=0,
    )
    result.variants = [
        dataclasses.replace(
            variant,
            analysis={} if variant.method == "full" else bounds(variant.perturbation.head_l1),
            forced_steps=() if variant.method == "full" else (step, step),
            follow_ups=(answer,),
            answer_scores={} if variant.method == "full" else {"exact_match": 1.0},
        )
        for variant in result.variants
    ]
    return result


# --- charts -----------------------------------------------------------------------------------


def test_the_laboratory_shows_only_where_there_is_data():
    assert chart_views.laboratory_value(snapshot()) is None
    value = chart_views.laboratory_value(snapshot(result=analysed()))
    assert [chart["name"] for chart in value["charts"]] == list(LABORATORY)


def test_a_run_without_measurements_says_why_there_is_no_chart():
    result = done_result()
    result.variants = [dataclasses.replace(v, perturbation=None) for v in result.variants]
    value = chart_views.perturbation_value(snapshot(state="failed", result=result))
    assert value["charts"] == []
    assert value["text"].endswith(".")


@pytest.mark.parametrize("name", [*PERTURBATION, *LABORATORY])
def test_every_choice_of_every_chart_can_be_drawn(name):
    result = analysed()
    for control in CHARTS[name].controls(result):
        for value, _ in control.options:
            figure = figure_of(result, name, {control.name: value})
            assert figure.data, (name, value)
            assert "n = " in figure.layout.title.subtitle.text or name == "budgets"


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
    assert "1 violations in 10 heads" in bounds_figure(result, 1).layout.title.subtitle.text


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


def test_tightness_is_the_sorted_ratio():
    curve = tightness_figure(analysed()).data[0]
    assert np.all(np.diff(curve.x) >= 0)
    assert curve.y[-1] == 1
    assert curve.x.max() == pytest.approx(11 / 23)


def test_wins_count_the_heads_below_the_base():
    figure = head_grid_figure(analysed(), 2, "head_l1", "wins")
    assert set(np.unique(figure.data[0].z)) == {-1, 1}
    assert "9 of n = 12 heads" in figure.layout.title.subtitle.text


def test_another_quantity_takes_its_base_from_the_run():
    result = analysed()
    assert base_index(result, 2) == 1
    assert base_index(result, 1) is None
    assert np.all(head_grid_figure(result, 2, "theta", "difference").data[0].z == 0)
    params = {**result.variants[1].params, "window": 9}
    result.variants[1] = dataclasses.replace(result.variants[1], params=params)
    assert base_index(result, 2) is None


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
    per_variant = 8 * 12 + 3 * 3 + 1 + 3 * 2
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
    assert [(band.y0, band.y1) for band in figure.layout.shapes] == [(0.5, 1.5)]
    assert '2,"snapkv+critical:budget=4","head_alpha","1",0,"",1,"",0.35\n' in analysis_csv(result)


# --- routes -----------------------------------------------------------------------------------


@pytest.fixture
def client() -> TestClient:
    run = snapshot(result=analysed())
    services = FakeServices(run)
    return TestClient(
        Starlette(routes=figure_routes(lambda r: services.runs.get(r.path_params["slug"])))
    )


def test_figures_and_strips_come_as_json(client):
    figure = client.get(f"/data/{SLUG}/figure/sigma?variant=2").json()
    assert figure["layout"]["title"]["text"].startswith("SnapKV + CriticalKV")
    strip = client.get(f"/data/{SLUG}/1/forced").json()
    assert strip["tokens"] == ["one", " two"]
    assert (strip["top1"], strip["rank"]) == ([1, 0], [1, 7])
    assert strip["steps"][0]["variant"] == [{"text": "<b>", "probability": 0.5}]


@pytest.mark.parametrize(
    "path", ["x/figure/sigma", f"{SLUG}/figure/x", f"{SLUG}/0/forced", f"{SLUG}/9/forced"]
)
def test_what_does_not_exist_is_a_404(client, path):
    assert client.get(f"/data/{path}").status_code == 404


def test_the_chart_library_is_our_own_file(client):
    answer = client.get("/plotly.js")
    assert answer.headers["content-encoding"] == "gzip"
    assert "plotly.js v" in answer.text[:200]


# --- cards, table, memory ---------------------------------------------------------------------


def test_a_strip_is_offered_once_the_run_is_over():
    cards = views.generations_value(snapshot(result=analysed()))["cards"]
    assert [card["forced"] for card in cards] == [
        None,
        f"/data/{SLUG}/1/forced",
        cards[2]["forced"],
    ]
    early = views.generations_value(snapshot(state="running", result=analysed()))["cards"]
    assert not any(card["forced"] for card in early)


def test_follow_ups_are_cards_per_question():
    assert views.follow_ups_value(snapshot()) == {"questions": []}
    (asked,) = views.follow_ups_value(snapshot(result=analysed()))["questions"]
    assert asked["question"] == "And then?"
    assert [card["chips"] for card in asked["cards"]] == [[], ["50% agreement"], ["50% agreement"]]
    assert asked["cards"][0]["reference"]


def test_the_table_has_fidelity_and_scores_only_where_measured():
    plain = {column["key"] for column in summary_value(done_result())["columns"]}
    assert not plain & {"forced_top1", "forced_kl", "exact_match", "token_f1"}
    value = summary_value(analysed())
    keys = {column["key"] for column in value["columns"]}
    assert keys >= {"forced_top1", "forced_kl", "exact_match"}
    cells = value["rows"][1]["cells"]
    assert cells["forced_top1"]["text"] == "50%"
    assert "n = 2" in cells["forced_kl"]["title"]


def test_memory_is_told_estimate_and_peak_apart():
    result = done_result()
    result.memory = {"total": 300 * 2**20, "measured_peak": 200 * 2**20}
    run = snapshot(result=result)
    chips = views.status_value(run, run.created_at)["chips"]
    assert chips[-2:] == ["memory estimate 300 MiB", "peak 200 MiB measured"]
    rows = {row["label"]: row["text"] for row in views.details_value(run)["rows"]}
    assert rows["Memory"] == "estimate in all: 300 MiB\nmeasured peak: 200 MiB"


# --- form -------------------------------------------------------------------------------------


def test_the_laboratory_survives_the_way_through_the_form():
    asked = request(
        scenario="context-only", analysis=("bounds", "greedy"), follow_ups=("one?", "two?")
    )
    back = FormValues.from_controls(FormValues.from_request(asked).controls()).request()
    assert (back.analysis, back.follow_ups) == (asked.analysis, asked.follow_ups)


def test_follow_ups_need_the_context_only_scenario():
    form = FormValues(context="a text", follow_ups="one?\n\n")
    with pytest.raises(ConfigError, match="context-only"):
        form.request().validate()


def test_the_alpha_per_head_is_offered_as_a_method():
    assert "snapkv+critical_auto" in [spec for _, spec in variant_choices()]
