"""Charts of a run: what the records say is what the figure shows, and which there are."""

import dataclasses
import json
from dataclasses import astuple, replace

import numpy as np
import pytest

from ckv_core.experiment.sweep import sweep_points, sweep_savings
from ckv_core.records.chain import check_chain
from ckv_core.records.events import RunResult
from ckv_core.records.records import RoundingFloor, VariantMemory
from ckv_core.records.variants import VariantSpec
from tests.factories.app import snapshot
from tests.factories.runs import (
    Drawn,
    Swept,
    analysed,
    done_result,
    drawn_result,
    sweep_result,
    with_changes,
)
from tests.factories.tables import numbers, rows_of
from tests.ui.charts.test_ablation import ablation_run
from ui.charts import catalog
from ui.charts.bounds import bounds_figure, sigma_figure
from ui.charts.catalog import CHARTS, DIAGNOSTICS, PERTURBATION, analysis_csv, figure_of
from ui.charts.heads import head_grid_figure, log2_ratio
from ui.charts.layers import (
    budgets_figure,
    final_figure,
    head_layer_figure,
    layer_figure,
    ratio,
)
from ui.looks.palette import looks_of
from ui.results import views
from ui.run.routes import TABLES

ALL_FIGURES = [
    layer_figure,
    head_layer_figure,
    final_figure,
    budgets_figure,
    lambda result: head_grid_figure(result, 1),
    lambda result: head_grid_figure(result, 2),
]


def moved(result: RunResult, at: int, **changes) -> RunResult:
    """The run, one of whose variants has other distances."""
    found = result.variants[at]
    distances = replace(found.perturbation, **changes)
    result.variants[at] = replace(found, perturbation=distances)
    return result


def told(figure) -> str:
    return figure.layout.title.subtitle.text


def controls_of(name: str, result: RunResult) -> dict[str, list[str]]:
    """Values of each choice of a chart."""
    offered = CHARTS[name].offered(result)
    return {control.name: [value for value, _ in control.options] for control in offered}


# --- layers ---------------------------------------------------------------------------------


def test_the_rounding_floor_is_a_line_of_its_own_and_hides_ratios_below_it():
    result = drawn_result()
    floors = 10 * np.arange(Drawn.LAYERS, dtype=np.float32)
    result.floor = RoundingFloor(layer_hidden_l1=floors, kl=0.1)
    *variants, floor = layer_figure(result).data
    assert len(variants) == 3
    assert (floor.name, floor.mode) == ("rounding floor (float32)", "lines")
    np.testing.assert_array_equal(floor.y, floors)
    above, below = layer_figure(result, against="reduction").data[-2:]
    np.testing.assert_array_equal(above.y, -below.y)
    (ratios,) = layer_figure(result, against="ratio").data
    base, own = (result.variants[at].perturbation.layer_hidden_l1 for at in (1, 2))
    level = np.abs(own - base) <= floors
    assert 0 < level.sum() < Drawn.LAYERS
    np.testing.assert_array_equal(np.isnan(ratios.y), level)
    bars = final_figure(result).layout
    assert f"rounding floor, {10 * (Drawn.LAYERS - 1)}" in bars.title.subtitle.text
    assert [line.x0 for line in bars.shapes] == [10 * (Drawn.LAYERS - 1)]
    rows = [line for line in analysis_csv(result).splitlines() if "hidden_l1_floor" in line]
    assert rows[2] == '"","","hidden_l1_floor","L1",2,"","","",20.0'


def test_layers_against_the_base_are_its_reduction_and_ratio():
    result = analysed()
    hidden = result.variants[1].perturbation.layer_hidden_l1
    moved(result, 2, layer_hidden_l1=hidden / 2)
    assert controls_of("layers", result)["against"] == ["value", "reduction", "ratio"]
    for against, values in (("reduction", hidden / 2), ("ratio", [0.5] * 3)):
        (line,) = figure_of(result, "layers", {"against": against}).data
        assert line.name == "CriticalKV-SnapKV"
        np.testing.assert_array_equal(line.y, values)
    del result.variants[1]
    assert "against" not in controls_of("layers", result)
    assert not layer_figure(result, "hidden_l1", "ratio").data


def test_final_bars_are_the_last_hidden_l1_and_lines_of_entries_the_means_of_a_layer():
    result = drawn_result()
    bars = final_figure(result).data[0]
    expected = [v.perturbation.layer_hidden_l1[-1] for v in result.variants[1:]]
    np.testing.assert_array_equal(bars.x, np.array(expected, np.float32))
    lines = [trace for trace in budgets_figure(result).data if trace.name]
    for line, variant in zip(lines, result.variants[1:], strict=True):
        means = variant.retained.mask().sum(axis=-1).mean(axis=1).astype(np.float32)
        means[list(Drawn.WHOLE)] = np.nan
        np.testing.assert_array_equal(line.y, means)


def test_a_ratio_to_nothing_is_a_gap_and_a_cross_marks_another_first_choice():
    out = ratio(np.array([1, 2], np.float32), np.array([0, 4], np.float32))
    np.testing.assert_array_equal(out, np.array([np.nan, 0.5], np.float32))
    crosses = figure_of(analysed(), "fidelity", {}).data[1]
    assert (list(crosses.x), list(crosses.y)) == ([2], [2.0])


# --- heads ----------------------------------------------------------------------------------


def test_head_grid_is_the_log_ratio_to_the_base_centred_on_zero_or_the_plain_head_l1():
    result = drawn_result()
    grid, *_, bands = head_grid_figure(result, 2).data
    assert grid.z.shape == (Drawn.LAYERS, Drawn.QUERY_HEADS)
    np.testing.assert_allclose(grid.z[~np.isnan(grid.z)], -np.log2(1.5), rtol=1e-5)
    assert grid.zmin == -grid.zmax
    assert bands.fillpattern.shape == "/"
    np.testing.assert_array_equal(bands.y.reshape(-1, 5)[:, :4].mean(axis=1), Drawn.WHOLE)
    plain = head_grid_figure(result, 1).data[0]
    np.testing.assert_array_equal(plain.z, result.variants[1].perturbation.head_l1)
    assert plain.zmin == 0


def test_a_line_in_the_cell_tells_the_heads_that_are_lower_without_colour():
    grid, lines = head_grid_figure(drawn_result(whole=()), 2).data
    below = {(int(y), int(x)) for y, x in zip(lines.y, lines.x, strict=True)}
    assert below == {(int(y), int(x)) for y, x in zip(*np.nonzero(grid.z < 0), strict=True)}
    assert lines.marker.symbol == "line-ew"
    # Dark on light cells, light on dark ones.
    strong = np.abs(grid.z[lines.y, lines.x]) > grid.zmax / 2
    np.testing.assert_array_equal(lines.marker.line.color, strong)


def test_log_ratio_of_heads_that_did_not_move_is_zero_and_infinite_ones_are_drawn():
    own, base = np.array([[0, 0, 2]], np.float32), np.array([[0, 1, 1]], np.float32)
    np.testing.assert_array_equal(log2_ratio(own, base), np.array([[0, -np.inf, 1]], np.float32))
    result = drawn_result(layers=1, query_heads=3, whole=())
    figure = head_grid_figure(moved(result, 2, head_l1=own, base_head_l1=base), 2)
    assert np.isfinite(figure.data[0].z).all()


# --- bounds, attention mass and fidelity ----------------------------------------------------


def test_the_chain_is_counted_where_sigma_is_above_one_half():
    result = analysed()
    assert astuple(check_chain(result.variants[1])) == (12, 10, 0)
    broken = dict(result.variants[1].analysis)
    broken["theta"] = broken["theta"].copy()
    broken["theta"][0, 0] = -1  # not covered: sigma is 0.4
    broken["theta"][2, 3] = -1
    result.variants[1] = replace(result.variants[1], analysis=broken)
    assert check_chain(result.variants[1]).violations == 1
    figure = bounds_figure(result, 1)
    assert "1 violations in 10 query heads" in told(figure)
    assert np.nanmin(np.diff(figure.data[0].y)) > 0  # heads stand by the measured L1
    assert figure.layout.yaxis.type == "log"
    values = np.concatenate([trace.y for trace in bounds_figure(analysed(), 1).data[:4]])
    assert np.nanmin(values) > 0  # the head that did not move has no place on this axis
    assert (figure.data[4].y < np.nanmin(values)).all()


def test_heads_that_the_theorem_leaves_out_are_marked_by_a_shape():
    for figure in (bounds_figure(analysed(), 1), sigma_figure(analysed(), 1)):
        crosses = [trace for trace in figure.data if trace.marker.symbol == "x"]
        assert [len(trace.x) for trace in crosses] == [2]
    assert "83.3 %" in told(figure)
    lines = {trace.name: trace.y for trace in figure.data}
    np.testing.assert_allclose(lines["kept in all"] - lines["sigma, measured"], 0.08, rtol=1e-5)


# --- which charts there are, and what can be chosen -----------------------------------------


def test_the_diagnostics_shows_only_where_there_is_data():
    assert views.diagnostics_value(snapshot()) is None
    value = views.diagnostics_value(snapshot(result=analysed()))
    assert [chart["name"] for chart in value["charts"]] == list(DIAGNOSTICS)
    unmeasured = with_changes(done_result(), lambda each: replace(each, perturbation=None))
    value = views.perturbation_value(snapshot(state="failed", result=unmeasured))
    assert value["charts"] == []
    assert value["text"].endswith(".")


@pytest.mark.parametrize("name", [*PERTURBATION, *DIAGNOSTICS])
def test_every_choice_of_every_chart_can_be_drawn(name):
    result = analysed()
    for control, values in controls_of(name, result).items():
        for value in values:
            figure = figure_of(result, name, {control: value})
            assert figure.data, (name, value)
            assert "n = " in told(figure)


def test_a_choice_that_does_not_exist_is_passed_over():
    hostile = {"variant": "99", "quantity": "__class__", "against": "x"}
    assert figure_of(analysed(), "heads", hostile).data
    assert figure_of(analysed(), "nothing", {}) is None


# --- the look of all ------------------------------------------------------------------------


def test_a_variant_looks_the_same_in_every_line_chart():
    result = drawn_result()
    for build in (layer_figure, head_layer_figure, budgets_figure):
        lines = [trace for trace in build(result).data if trace.name]
        looks = [(t.line.color, t.line.dash, t.marker.symbol) for t in lines]
        wanted = looks_of(result.variants)[1:]
        assert looks == [(look.color, look.dash, look.symbol) for look in wanted]


def test_names_are_text_and_not_markup():
    lines = layer_figure(drawn_result(names=[("x", "<b>bold</b> & co")])).data
    assert lines[0].name == "&lt;b&gt;bold&lt;/b&gt; &amp; co"


def test_no_chart_of_a_run_without_measurements_is_offered_and_no_figure_is_blank():
    unknown = {"perturbation": None, "receipt": None, "retained": None, "analysis": {}}
    blank = RunResult(variants=[replace(each, **unknown) for each in drawn_result().variants])
    assert [name for name in CHARTS if figure_of(blank, name, {})] == []
    for build in (layer_figure, head_layer_figure, budgets_figure, ALL_FIGURES[-1]):
        figure = build(blank)
        assert not figure.data
        assert figure.layout.annotations[0].text.endswith(".")


@pytest.mark.parametrize("build", ALL_FIGURES)
def test_figures_are_small_transparent_and_pass_arrays(build):
    methods = ("snapkv", "pyramidkv", "adakv", "snapkv+critical")
    names = [(f"{method}:budget={b}", method) for method in methods for b in (64, 128, 256, 512)]
    figure = build(drawn_result(layers=80, query_heads=64, names=names, whole=(3,)))
    text, layout = figure.to_json(), figure.layout
    assert len(text) < 60_000
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0, 0, 0, 0)"
    assert layout.xaxis.separatethousands is layout.yaxis.separatethousands is True
    assert len(json.dumps(json.loads(text)["layout"]["template"])) < 100
    for trace in json.loads(text)["data"]:
        for axis in {"x", "y", "z"} & set(trace):
            assert set(trace[axis]) >= {"dtype", "bdata"}, (trace["type"], axis)


# --- tables of a run: the CSV that a chart names holds what the chart draws, and more ------

CRITICAL = "2"
BOUNDS = (
    "value_mass",
    "theta",
    "theta_hat",
    "theta_relaxed",
    "sigma_stage1",
    "oracle_attention_l1",
)


def measured_result():
    """Every array that a chart asks for, each of its own random values."""
    rng = np.random.default_rng(5)

    def diagnosed(variant):
        heads = variant.perturbation.head_l1
        arrays = {name: heads * 0 + rng.random(heads.shape, np.float32) for name in BOUNDS}
        arrays["head_alpha"] = rng.random((Drawn.LAYERS, 2), np.float32)
        params = VariantSpec.parse(variant.spec).params
        memory = VariantMemory(read=(10, 20, 30), held=(2**20, *[3 * 2**19] * 2))
        return dataclasses.replace(variant, params=params, analysis=arrays, memory=memory)

    return with_changes(drawn_result(), diagnosed)


def array(quantity):
    """One array of the CriticalKV variant in the analysis table."""
    return lambda rows: numbers(rows, "value", variant=CRITICAL, quantity=quantity)


def column(name, **where):
    """One column of a table."""
    return lambda rows: numbers(rows, name, **where)


def bound(name):
    """One column of the CriticalKV variant in the table of the bounds."""
    return column(name, variant=CRITICAL)


def head_ratios(rows):
    return array("head_l1")(rows) / array("base_head_l1")(rows)


def oracle_means(rows):
    return array("oracle_attention_l1")(rows).reshape(-1, Drawn.QUERY_HEADS).mean(axis=1)


# Chart -> where its figure has numbers, and the same from the rows of its table.
HOLDS = {
    "layers": (lambda figure: figure.data[1].y, array("hidden_l1")),
    "final": (lambda figure: figure.data[0].x[1:2], array("hidden_l1")),
    "heads": (lambda figure: 2 ** figure.data[0].z, head_ratios),
    # The band, from the fewest to the most.
    "budgets": (lambda figure: figure.data[0].y, column("value", quantity="kept_entries")),
    "alphas": (lambda figure: figure.data[0].z, array("head_alpha")),
    "ablation": (lambda figure: figure.data[2].x / 100, column("final_hidden_l1_of_base")),
    "fidelity": (lambda figure: figure.data[0].y, column("forced_kl")),
    "oracles": (lambda figure: figure.data[-1].y, oracle_means),
    "sigma": (lambda figure: figure.data[0].y, array("sigma_stage1")),
    "bounds": (lambda figure: figure.data[2].y, bound("theta_hat")),
    "tightness": (lambda figure: figure.data[1].x, bound("tightness")),
    "memory": (lambda figure: figure.data[0].y * 2**20, column("held_bytes")),
    "sweep": (lambda figure: figure.data[0].y / 100, column("mean", metric="agreement", minus="")),
}


def run_for(chart):
    if chart.name == "ablation":
        return ablation_run()
    if chart.name == "fidelity":
        return analysed()
    if chart.csv != "sweep":
        return measured_result()
    result = sweep_result(generated=True)
    full = dataclasses.replace(result.variants[0], answer_scores={"exact_match": 1.0})
    # Where the full cache has no exact match, no chart shows any.
    return dataclasses.replace(result, variants=[full, *result.variants[1:]])


@pytest.mark.parametrize("name", CHARTS)
def test_the_table_of_a_chart_holds_what_it_draws(name):
    chart = CHARTS[name]
    result = run_for(chart)
    drawn_of, held_of = HOLDS[name]
    figure = figure_of(result, name, {"variant": CRITICAL, "quantity": "agreement"})
    drawn = np.asarray(drawn_of(figure), np.float64)
    drawn = drawn[np.isfinite(drawn)]
    held = held_of(rows_of(TABLES[chart.csv](result)))
    assert drawn.size
    assert len(held) >= len(drawn)
    for value in drawn:
        assert np.isclose(held, value, rtol=1e-5).any(), value


def test_the_analysis_holds_every_measured_value():
    lines = catalog.analysis_csv(analysed()).splitlines()
    per_variant = 9 * 12 + 3 * 3 + 1 + 3 * 2
    kept, base = 2 * 2 * 3, 12  # of KV heads; of CriticalKV
    assert len(lines) == 1 + 2 * per_variant + kept + base
    assert '1,"snapkv:budget=4","sigma_stage1","1",0,1,"","",0.4' in lines


def test_each_candidate_stands_beside_what_was_measured_at_its_step():
    found = rows_of(catalog.teacher_forced_csv(analysed()))
    names = ("forced_kl", "forced_rank", "forced_top1")
    assert {row["variant"] for row in found} == {"1", "2"}
    for step, figures in (("0", ("0.001", "1.0", "1.0")), ("1", ("2.0", "7.0", "0.0"))):
        of_step = [row for row in found if row["step"] == step]
        assert {tuple(row[name] for name in names) for row in of_step} == {figures}
        candidates = [(row["cache"], row["token_id"], row["probability"]) for row in of_step]
        assert candidates == 2 * [("full", "1", "0.9"), ("variant", "2", "0.5")]
    unmeasured = with_changes(analysed(), lambda each: dataclasses.replace(each, analysis={}))
    found = rows_of(catalog.teacher_forced_csv(unmeasured))
    assert {row["forced_kl"] for row in found} == {""}


def test_follow_ups_have_a_line_for_each_variant_and_question():
    found = rows_of(catalog.follow_ups_csv(analysed()))
    assert [(row["variant"], row["question"], row["text"], row["agreement"]) for row in found] == [
        (at, "And then?", "x", "0.5") for at in "012"
    ]


# --- the charts and tables of several budgets: curves, savings and points ------------------


def drawn(result, quantity, **choices):
    return figure_of(result, "sweep", {"quantity": quantity, **choices})


def value(table, *given):
    """As the page has it."""
    return table(*given).value()


# --- budgets of equal quality ---------------------------------------------------------------


@pytest.mark.parametrize("reference", [None, -1, 99, "0", 1.5])
def test_an_unknown_reference_gives_an_empty_table(reference):
    assert value(sweep_savings, sweep_result(), reference)["rows"] == []


# --- curves ---------------------------------------------------------------------------------


def test_a_curve_has_its_lines_values_and_the_full_cache():
    figure = drawn(sweep_result(better=0.5), "kl")
    assert [list(trace.x) for trace in figure.data] == [list(Swept.BUDGETS)] * 4
    assert np.allclose(figure.data[1].y, [0.25, 0.125, 0.0625, 0.03125])
    assert len({(t.line.color, t.line.dash, t.marker.symbol) for t in figure.data}) == 4
    assert figure.layout.annotations[0].text == "full cache"


def test_yes_or_no_of_one_prompt_is_the_grids_and_no_curve():
    result = sweep_result(generated=True)
    (quantity, *_) = CHARTS["sweep"].offered(result)
    keys = [key for key, _ in quantity.options]
    assert "kl" in keys
    assert not {"answer", "same_text"} & {*keys}


# --- points and files -----------------------------------------------------------------------


def test_a_reference_answer_that_the_prompt_lacks_is_said():
    result = sweep_result(generated=True)
    there = "".join(result.prompt.pieces[2:5])
    lacks = "does not occur in the compressed prompt"
    assert lacks in value(sweep_points, result, "nowhere to be found")["note"]
    assert lacks not in value(sweep_points, result, there)["note"]
    assert lacks not in value(sweep_points, result, " ")["note"]


# --- oracles --------------------------------------------------------------------------------


def swept_with_oracles():
    """The made-up sweep with oracles; those of alpha 0.5 have head budgets of their own."""

    def with_limits(variant):
        scale = 0.25 if variant.params.get("alpha") == 0.5 else 0.5
        limit = np.full((Swept.LAYERS, 6), scale * 64 / variant.params["budget"], np.float32)
        limit[Swept.WHOLE_LAYER] = np.nan
        return replace(
            variant, analysis={"oracle_attention_l1": limit, "oracle_critical_l1": limit / 2}
        )

    return with_changes(sweep_result(), with_limits)


def test_oracles_of_a_curve_are_broken_lines_beside_the_head_l1_alone():
    result = swept_with_oracles()
    assert len(drawn(result, "head").data) == 4
    *methods, attention, critical = drawn(result, "head", oracles="1").data
    assert len(methods) == 4
    assert attention.name == "Oracle: true attention"
    assert list(attention.x) == list(Swept.BUDGETS)
    assert np.allclose(attention.y, [0.5, 0.25, 0.125, 0.0625])
    assert np.allclose(critical.y, np.array(attention.y) / 2)
    assert len({(trace.line.dash, trace.marker.symbol) for trace in (attention, critical)}) == 2
    for trace in (attention, critical):
        assert "dash" in trace.line.dash
        assert trace.line.color not in {each.line.color for each in methods}
    assert len(drawn(result, "final", oracles="1").data) == 4
    *_, control = CHARTS["sweep"].offered(result)
    names = [f"CriticalKV-SnapKV alpha {alpha}" for alpha in ("0", "0.25", "0.5")]
    assert [name for _, name in control.options] == ["none", "SnapKV", *names]
    assert "oracles" not in [control.name for control in CHARTS["sweep"].offered(sweep_result())]
