"""Charts: what the records say is what the figure shows."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ckv_core.results.events import RunResult
from ckv_core.results.records import RetainedSet, RoundingFloor
from tests.factories.runs import Drawn, drawn_result
from ui.charts.cache import budgets_figure, entry_counts
from ui.charts.heads import head_grid_figure, log2_ratio
from ui.charts.layers import final_figure, head_layer_figure, layer_figure, layer_means, ratio
from ui.charts.layout import name_bars, new_figure
from ui.charts.run_csv import analysis_csv
from ui.looks.palette import looks_of

ALL_FIGURES = [
    layer_figure,
    head_layer_figure,
    final_figure,
    budgets_figure,
    lambda result: head_grid_figure(result, 1),
    lambda result: head_grid_figure(result, 2),
]


def array_of(values):
    return np.asarray(values, np.float64)


def test_layer_lines_are_the_hidden_l1_of_each_measured_variant():
    result = drawn_result()
    lines = layer_figure(result).data
    assert [line.name for line in lines] == ["SnapKV", "SnapKV + CriticalKV", "AdaKV"]
    for line, variant in zip(lines, result.variants[1:], strict=True):
        np.testing.assert_array_equal(line.y, variant.perturbation.layer_hidden_l1)


def test_the_rounding_floor_is_a_line_of_its_own_and_hides_ratios_below_it():
    result = drawn_result()
    result.floor = RoundingFloor(
        layer_hidden_l1=10 * np.arange(Drawn.LAYERS, dtype=np.float32), kl=0.1
    )
    *variants, floor = layer_figure(result).data
    assert len(variants) == 3
    assert (floor.name, floor.mode) == ("rounding floor (float32)", "lines")
    np.testing.assert_array_equal(floor.y, result.floor.layer_hidden_l1)
    above, below = layer_figure(result, against="reduction").data[-2:]
    np.testing.assert_array_equal(above.y, -below.y)
    (ratios,) = layer_figure(result, against="ratio").data
    base, own = (result.variants[at].perturbation.layer_hidden_l1 for at in (1, 2))
    level = np.abs(own - base) <= result.floor.layer_hidden_l1
    assert 0 < level.sum() < Drawn.LAYERS
    np.testing.assert_array_equal(np.isnan(ratios.y), level)
    bars = final_figure(result).layout
    assert f"rounding floor, {10 * (Drawn.LAYERS - 1)}" in bars.title.subtitle.text
    assert [line.x0 for line in bars.shapes] == [10 * (Drawn.LAYERS - 1)]
    rows = [line for line in analysis_csv(result).splitlines() if "hidden_l1_floor" in line]
    assert rows[2] == '"","","hidden_l1_floor","L1",2,"","","",20.0'


def test_a_variant_looks_the_same_in_every_line_chart():
    result = drawn_result()
    for build in (layer_figure, head_layer_figure, budgets_figure):
        lines = [trace for trace in build(result).data if trace.name]
        looks = [(t.line.color, t.line.dash, t.marker.symbol) for t in lines]
        wanted = looks_of(result.variants)[1:]
        assert looks == [(look.color, look.dash, look.symbol) for look in wanted]


def test_a_ratio_to_zero_is_a_gap():
    out = ratio(np.array([1, 2], np.float32), np.array([0, 4], np.float32))
    np.testing.assert_array_equal(out, np.array([np.nan, 0.5], np.float32))


def test_mean_head_l1_leaves_whole_layers_out():
    heads = np.array([[1, 3, 2], [np.nan, np.nan, np.nan]], np.float32)
    np.testing.assert_array_equal(layer_means(heads), np.array([2, np.nan], np.float32))
    line = head_layer_figure(drawn_result()).data[0]
    assert np.flatnonzero(np.isnan(line.y)).tolist() == list(Drawn.WHOLE)


def test_head_grid_against_a_base_is_the_log_ratio_centred_on_zero():
    figure = head_grid_figure(drawn_result(), 2)
    grid = figure.data[0]
    valid = ~np.isnan(array_of(grid.z))
    np.testing.assert_allclose(array_of(grid.z)[valid], -np.log2(1.5), rtol=1e-5)
    assert grid.zmin == -grid.zmax
    assert array_of(grid.z).shape == (Drawn.LAYERS, Drawn.QUERY_HEADS)


def test_head_grid_title_states_share_and_n():
    result = drawn_result()
    found = result.variants[2].perturbation
    heads = found.head_l1.copy()
    heads[0, :2] *= 10
    result.variants[2] = replace(result.variants[2], perturbation=replace(found, head_l1=heads))
    title = head_grid_figure(result, 2).layout.title
    evictable = (Drawn.LAYERS - len(Drawn.WHOLE)) * Drawn.QUERY_HEADS
    assert f"{(evictable - 2) / evictable:.0%}" in title.text
    assert f"n = {evictable} " in title.subtitle.text


def test_head_grid_without_a_base_is_the_plain_head_l1():
    result = drawn_result()
    grid = head_grid_figure(result, 1).data[0]
    np.testing.assert_array_equal(grid.z, result.variants[1].perturbation.head_l1)
    assert grid.zmin == 0


def test_head_grid_hatches_whole_layers():
    bands = head_grid_figure(drawn_result(), 2).data[-1]
    assert bands.fillpattern.shape == "/"
    np.testing.assert_array_equal(bands.y.reshape(-1, 5)[:, :4].mean(axis=1), Drawn.WHOLE)
    assert len(head_grid_figure(drawn_result(whole=()), 2).data) == 2


def test_a_line_in_the_cell_tells_the_heads_that_are_lower_without_colour():
    grid, lines = head_grid_figure(drawn_result(whole=()), 2).data
    below = {(int(y), int(x)) for y, x in zip(lines.y, lines.x, strict=True)}
    assert below == {(int(y), int(x)) for y, x in zip(*np.nonzero(grid.z < 0), strict=True)}
    assert lines.marker.symbol == "line-ew"
    # Dark on light cells, light on dark ones.
    strong = np.abs(grid.z[lines.y, lines.x]) > grid.zmax / 2
    np.testing.assert_array_equal(lines.marker.line.color, strong)


def test_log_ratio_of_heads_that_did_not_move_is_zero_and_infinite_ones_are_drawn():
    moved = np.array([[0, 0, 2]], np.float32)
    base = np.array([[0, 1, 1]], np.float32)
    np.testing.assert_array_equal(log2_ratio(moved, base), np.array([[0, -np.inf, 1]], np.float32))
    result = drawn_result(layers=1, query_heads=3, whole=())
    found = replace(result.variants[2].perturbation, head_l1=moved, base_head_l1=base)
    result.variants[2] = replace(result.variants[2], perturbation=found)
    assert np.isfinite(array_of(head_grid_figure(result, 2).data[0].z)).all()


def test_final_bars_are_the_last_hidden_l1():
    result = drawn_result()
    bars = final_figure(result).data[0]
    expected = [v.perturbation.layer_hidden_l1[-1] for v in result.variants[1:]]
    np.testing.assert_array_equal(bars.x, np.array(expected, np.float32))
    assert list(bars.customdata) == ["SnapKV", "SnapKV + CriticalKV", "AdaKV"]


def test_entry_counts_equal_the_unpacked_mask():
    for variant in drawn_result().variants[1:]:
        expected = variant.retained.mask().sum(axis=-1)
        np.testing.assert_array_equal(entry_counts(variant.retained), expected)


def test_budget_lines_are_means_with_a_band_only_where_heads_differ():
    result = drawn_result()
    even = np.zeros((Drawn.LAYERS, Drawn.KV_HEADS, Drawn.POSITIONS), np.bool_)
    even[..., :25] = True
    result.variants[1] = replace(result.variants[1], retained=RetainedSet.from_mask(even))
    traces = budgets_figure(result).data
    lines = [trace for trace in traces if trace.name]
    bands = [trace for trace in traces if trace.fill == "toself"]
    assert np.nanmax(lines[0].y) == np.nanmin(lines[0].y) == 25
    assert np.flatnonzero(np.isnan(lines[0].y)).tolist() == list(Drawn.WHOLE)
    assert [band.legendgroup for band in bands] == ["2", "3"]
    counts = entry_counts(result.variants[3].retained)[[0, 2, 3, 5]]
    assert bands[1].y.max() == counts.max()
    assert bands[1].y.min() == counts.min()


def test_variants_of_one_label_are_told_apart_by_their_spec():
    names = [("snapkv:budget=64", "SnapKV"), ("snapkv:budget=128", "SnapKV")]
    lines = layer_figure(drawn_result(names=names)).data
    assert [line.name for line in lines] == ["snapkv:budget=64", "snapkv:budget=128"]


def test_names_are_text_and_not_markup():
    lines = layer_figure(drawn_result(names=[("x", "<b>bold</b> & co")])).data
    assert lines[0].name == "&lt;b&gt;bold&lt;/b&gt; &amp; co"


@pytest.mark.parametrize("build", ALL_FIGURES)
def test_figures_say_why_they_are_empty(build):
    blank = [
        replace(v, perturbation=None, receipt=None, retained=None) for v in drawn_result().variants
    ]
    figure = build(RunResult(variants=blank))
    assert not figure.data
    assert figure.layout.annotations[0].text.endswith(".")


@pytest.mark.parametrize("build", ALL_FIGURES)
def test_figures_are_small_transparent_and_pass_arrays(build):
    methods = ("snapkv", "pyramidkv", "adakv", "snapkv+critical")
    names = [(f"{method}:budget={b}", method) for method in methods for b in (64, 128, 256, 512)]
    figure = build(drawn_result(layers=80, query_heads=64, names=names, whole=(3,)))
    text = figure.to_json()
    assert len(text) < 60_000
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0, 0, 0, 0)"
    assert len(json.dumps(json.loads(text)["layout"]["template"])) < 100
    for trace in json.loads(text)["data"]:
        for axis in {"x", "y", "z"} & set(trace):
            assert set(trace[axis]) >= {"dtype", "bdata"}, (trace["type"], axis)


def test_bars_grow_with_the_variants_so_that_their_names_stay_apart():
    names = [(f"snapkv+critical:budget={b}", "SnapKV + CriticalKV") for b in range(64, 76)]
    names = [("full", "Full cache"), *names]
    few, many = final_figure(drawn_result()), final_figure(drawn_result(names=names))
    assert many.layout.height > few.layout.height
    assert many.layout.height / len(names) > 30


def test_bars_are_as_far_apart_as_the_longest_of_their_names_is_high():
    figure = new_figure("Bars")
    figure.add_bar(x=[1.0] * 20, orientation="h")
    name_bars(figure, ["snapkv:budget=30MiB, query-aware"] * 20)
    assert figure.layout.height / 20 > 3 * 15


@pytest.mark.parametrize("build", ALL_FIGURES)
def test_axes_write_thousands_as_the_tables_do(build):
    layout = build(drawn_result()).layout
    assert layout.xaxis.separatethousands is layout.yaxis.separatethousands is True
