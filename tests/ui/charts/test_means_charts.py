"""Charts of several runs: against the budget, layer by layer; and what their tables hold."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ckv_core.analysis.aggregate import (
    budget_curves,
    hidden_by_layer,
    reduction_by_layer,
    varied_units,
)
from ckv_core.experiment.stats import MIN_PROMPTS, mean_interval
from ckv_core.results.figures import figures_in
from tests.factories.app import prompt_run, runs_of, sweep_snapshot
from tests.factories.runs import Swept, sweep_result, with_changes
from tests.factories.tables import numbers, rows_of
from ui.aggregate.chosen import take_together
from ui.aggregate.routes import TABLES
from ui.charts.aggregate import AGGREGATE_CHARTS
from ui.results.chart_views import aggregate_value

BUDGET, LAYERS = AGGREGATE_CHARTS["budget"], AGGREGATE_CHARTS["layers"]
METHOD = "SnapKV + CriticalKV"
NAMES = ["SnapKV", *(f"{METHOD}, alpha {alpha}" for alpha in ("0", "0.25", "0.5"))]
PLAIN, CRITICAL = "snapkv:budget=64", "snapkv+critical:budget=64,alpha=0.25"


def generated_runs(count: int = MIN_PROMPTS):
    """Sweeps with text, answers and sigma, each on its own prompt."""
    runs = []
    for at in range(count):
        result = sweep_result(generated=True, better=0.5 + 0.04 * at, plain=1 + 0.02 * at)
        result.prompt = replace(result.prompt, token_ids=(at,))
        runs.append(sweep_snapshot(slug=f"runabc{at}", result=result))
    return runs


@cache
def of_prompts(count: int):
    """The runs of as many prompts, taken together."""
    return take_together(runs_of(count))


def only(runs, wanted):
    """The runs with those variants alone that are wanted."""
    for run in runs:
        run.result.variants = [each for each in run.result.variants if wanted(each)]
    return runs


def changed(change, runs=None):
    """Runs whose evicting variants went through `change`, taken together."""
    runs = runs or runs_of(2)
    return take_together([replace(run, result=with_changes(run.result, change)) for run in runs])


def charts_of(found) -> set[str]:
    return {chart["name"] for chart in aggregate_value(["a", "b"], found)["charts"]}


def choices(chart, found) -> dict[str, list[str]]:
    """Values of each control of a chart."""
    offered = chart.offered(found)
    return {control.name: [value for value, _ in control.options] for control in offered}


def told(figure) -> str:
    return figure.layout.title.subtitle.text


def lines_of(figure):
    """Curves by name."""
    return {trace.name: trace for trace in figure.data if trace.showlegend is not False}


def beside(figure, name: str):
    """What stands around a curve without a name of its own: its intervals."""
    line = lines_of(figure)[name]
    return [t for t in figure.data if t.legendgroup == line.legendgroup and t is not line]


def bars_of(figure, name: str):
    """The intervals of a curve; None where it has none."""
    return next(iter(beside(figure, name)), None)


# --- against the budget ---------------------------------------------------------------------


def test_a_curve_is_the_mean_over_prompts_at_each_budget_with_its_interval():
    figure = BUDGET.figure(of_prompts(MIN_PROMPTS), {})
    assert figure.layout.title.text == "Final hidden L1 against the budget"
    assert told(figure) == "mean and 95 % interval, n = 10 prompts"
    name = f"{METHOD}, alpha 0.25"
    line, bars = lines_of(figure)[name], bars_of(figure, name)
    assert tuple(line.x) == Swept.BUDGETS
    for at, budget in enumerate(Swept.BUDGETS):
        finals = [100 * (0.5 + 0.04 * p) * 64 / budget for p in range(MIN_PROMPTS)]
        found = mean_interval([np.float32(final) for final in finals])
        assert line.y[at] == bars.y[at] == pytest.approx(found.mean)
        assert bars.y[at] + bars.error_y.array[at] == pytest.approx(found.high)
        assert bars.y[at] - bars.error_y.arrayminus[at] == pytest.approx(found.low)
    assert list(figure.layout.xaxis.ticktext) == ["64", "128", "256", "512"]


def test_every_curve_has_its_own_mark_and_of_too_few_prompts_no_bars():
    figure = BUDGET.figure(of_prompts(MIN_PROMPTS - 1), {})
    assert [trace.name for trace in figure.data] == list(lines_of(figure)) == NAMES
    assert len({trace.marker.symbol for trace in figure.data}) == 4
    assert told(figure) == "mean; no interval of so few or equal values, n = 9 prompts"


def test_bars_stand_beside_one_another_and_near_their_budget():
    figure = BUDGET.figure(of_prompts(MIN_PROMPTS), {})
    places = np.log2([bars_of(figure, name).x for name in NAMES])
    assert (np.diff(places, axis=0) > 0.05).all()
    assert np.abs(places - np.log2(Swept.BUDGETS)).max() < 1 / 8


def test_bars_stay_by_their_point_however_many_curves_have_none():
    first, *others = runs_of(MIN_PROMPTS)
    only(others, lambda variant: variant.params.get("alpha") in (None, 0.5))
    figure = BUDGET.figure(take_together([first, *others]), {})
    assert list(lines_of(figure)) == NAMES
    own = [bars_of(figure, name) for name in NAMES]
    places = np.log2([bars.x for bars in own if bars is not None]) - np.log2(Swept.BUDGETS)
    assert len(places) == 2
    np.testing.assert_allclose(places.sum(axis=0), 0, atol=1e-9)  # to the left and right alike


def test_a_curve_says_what_is_not_recorded_of_it():
    runs = runs_of(2)

    def of_no_alpha(variant):
        return replace(variant, spec=variant.spec.partition(",")[0])

    first, second = (run.result for run in runs)
    alpha_0 = [v for v in first.variants if v.params.get("alpha") == 0]
    first.variants += map(of_no_alpha, alpha_0)
    second.variants = [
        replace(of_no_alpha(v), params={})
        for v in second.variants
        if v.params.get("alpha") in (None, 0)
    ]
    # One more prompt of the first run's variants, so that some are in common.
    more = replace(first, prompt=replace(first.prompt, token_ids=(7, 7)))
    found = take_together([*runs, sweep_snapshot(slug="runmore", result=more)])
    names = list(lines_of(BUDGET.figure(found, {})))
    assert "SnapKV, group not recorded" in names
    assert "SnapKV + CriticalKV, alpha not recorded" in names


def test_a_figure_that_not_all_prompts_have_is_drawn_with_its_own_n():
    runs = [*generated_runs(8), prompt_run(1_000), prompt_run(2_000)]
    asked = {"quantity": "agreement"}
    assert "n = 8 prompts" in told(BUDGET.figure(take_together(runs), asked))
    for run in runs[8:]:
        run.result.variants[1] = replace(run.result.variants[1], agreement=0.5)
    figure = BUDGET.figure(take_together(runs), asked)
    assert told(figure) == "mean and 95 % interval, n = 8 to 10 prompts"  # of shares, of any n
    assert list(lines_of(figure)["SnapKV"].customdata) == [10, 8, 8, 8]


def test_the_final_layer_comes_first_and_only_what_is_known_is_offered():
    for runs in (runs_of(2), generated_runs(2)):
        points = runs[0].result.variants[1:]
        known = [
            key
            for key, figure in figures_in("means").items()
            if any(figure.read(point) is not None for point in points)
        ]
        offered = choices(BUDGET, take_together(runs))["quantity"]
        assert offered == sorted(known, key=lambda key: key != "final")
        assert {"final", "kl", "head", "improved_heads"} <= {*offered}


def test_one_budget_alone_is_no_curve():
    found = take_together(only(runs_of(2), lambda v: v.method == "full" or "budget=64" in v.spec))
    assert BUDGET.figure(found, {}) is None
    assert "budget" not in charts_of(found)


def test_budgets_of_different_units_do_not_share_an_axis():
    def in_percent(variant):
        spec = variant.spec.replace("budget=256", "budget=2.5%")
        return replace(variant, spec=spec.replace("budget=512", "budget=10%"))

    found = changed(in_percent)
    assert choices(BUDGET, found)["unit"] == ["tokens", "percent"]
    for unit, budgets in (("tokens", (64, 128)), ("percent", (2.5, 10))):
        figure = BUDGET.figure(found, {"unit": unit})
        assert {tuple(trace.x) for trace in figure.data} == {budgets}
    assert list(figure.layout.xaxis.ticktext) == ["2.5", "10"]
    assert figure.layout.xaxis.title.text == "budget, percent of the compressed prompt"


def test_what_has_no_budget_is_in_no_curve():
    def as_own(variant):
        own = {"method": "own", "spec": f"own:label={variant.spec[-3:]}<b>"}
        return variant if variant.critical else replace(variant, **own)

    found = changed(as_own)
    assert [curve.alpha for curve in budget_curves(found.members)] == [0, 0.25, 0.5]
    assert varied_units(budget_curves(found.members), "final") == ["tokens"]


@pytest.mark.parametrize("name", ["budget", "final", "layers", "wins"])
def test_a_name_from_a_hostile_file_stays_text(name):
    hostile = {"quantity": "<b>", "unit": "__class__", "budget": "__class__"}
    found = changed(lambda variant: replace(variant, label="<img src=x>"))
    figure = AGGREGATE_CHARTS[name].figure(found, hostile)
    assert "<img" not in figure.to_json().replace("\\u003c", "<")


# --- layer by layer -------------------------------------------------------------------------


def joined(found, spec: str):
    """The variant of this SPEC over its prompts."""
    (member,) = [each for each in found.members if each.spec == spec]
    return member.joined


def test_a_line_is_the_mean_of_each_layer_and_its_band_the_interval():
    found = of_prompts(MIN_PROMPTS)
    figure, variant = LAYERS.figure(found, {"budget": "64"}), joined(found, CRITICAL)
    assert told(figure) == "mean and 95 % interval, n = 10 prompts"
    assert list(lines_of(figure)) == NAMES
    line, (low, high) = lines_of(figure)[NAMES[2]], beside(figure, NAMES[2])
    wanted = [(each.mean, each.low, each.high) for each in hidden_by_layer(variant)]
    np.testing.assert_allclose(np.stack([line.y, low.y, high.y], axis=1), wanted, rtol=1e-6)
    assert high.fill == "tonexty"
    assert line.line.color == found.looks[variant.place].color


def test_the_reduction_is_the_base_minus_the_variant_of_the_same_budget():
    found, asked = of_prompts(2), {"quantity": "reduction", "budget": "64"}
    few = LAYERS.figure(found, {})
    assert len(few.data) == len(lines_of(few)) == 4  # no bands of two prompts
    assert "no interval" in told(few)
    budgets = [str(each) for each in Swept.BUDGETS]
    assert choices(LAYERS, found) == {"quantity": ["hidden", "reduction"], "budget": budgets}
    figure = LAYERS.figure(found, asked)
    assert list(lines_of(figure)) == NAMES[1:]
    means = reduction_by_layer(joined(found, CRITICAL), [each.joined for each in found.members])
    wanted = [each.mean for each in means]
    np.testing.assert_allclose(lines_of(figure)[NAMES[2]].y, wanted, rtol=1e-6)
    runs = only(runs_of(2), lambda variant: variant.spec != PLAIN)
    figure = LAYERS.figure(take_together(runs), asked)
    assert not figure.data
    assert "Not measured" in figure.layout.annotations[0].text
    without = take_together(only(runs, lambda variant: variant.critical))
    assert choices(LAYERS, without)["quantity"] == ["hidden"]


def test_runs_without_measurements_have_no_such_chart():
    found = changed(lambda variant: replace(variant, perturbation=None))
    assert "layers" not in charts_of(found)
    assert LAYERS.figure(found, {}) is None


# --- the table of each ----------------------------------------------------------------------


@cache
def diagnostics_runs():
    runs = generated_runs()
    for at, run in enumerate(runs):
        theta = np.full((Swept.LAYERS, Swept.QUERY_HEADS), 1.0 + at * at, np.float32)
        run.result.variants[1] = replace(run.result.variants[1], analysis={"theta": theta})
    return take_together(runs)


def ends(trace, axis: str):
    """Mean, low and high of every point of a curve of means."""
    bars, mean = trace[f"error_{axis}"], np.asarray(trace[axis], np.float64)
    return np.concatenate([mean, mean - bars.arrayminus, mean + bars.array])


def held(rows, **where):
    return np.concatenate([numbers(rows, column, **where) for column in ("mean", "low", "high")])


@pytest.mark.parametrize("name", sorted(AGGREGATE_CHARTS.keys() - {"ablation"}))
def test_the_table_of_a_chart_holds_what_it_draws(name):
    found, chart = diagnostics_runs(), AGGREGATE_CHARTS[name]
    rows = rows_of(TABLES[chart.csv](found))
    figure = chart.figure(found, {})
    if name == "wins":
        first, _ = chart.offered(found)[0].options[0]
        drawn = figure.data[0].z[np.isfinite(figure.data[0].z)]
        written = numbers(rows, "log2_ratio", spec=found.members[int(first)].spec)
        np.testing.assert_allclose(written[np.isfinite(written)], drawn, rtol=1e-5)
    elif name == "layers":
        for quantity, label in chart.offered(found)[0].options:
            drawn = chart.figure(found, {"quantity": quantity, "budget": "64"})
            where = {"spec": CRITICAL, "figure": label, "prompts": 10}
            assert numbers(rows, "layer", **where).tolist() == [*range(Swept.LAYERS)]
            line = [lines_of(drawn)[NAMES[2]], *beside(drawn, NAMES[2])]
            shown = np.concatenate([trace.y for trace in line])
            np.testing.assert_allclose(held(rows, **where), shown, rtol=1e-6)
    elif name == "budget":
        for quantity, label in chart.offered(found)[0].options:
            drawn = chart.figure(found, {"quantity": quantity})
            where = {"curve": "snapkv+critical:alpha=0", "budget_unit": "tokens", "figure": label}
            np.testing.assert_allclose(held(rows, **where), ends(bars_of(drawn, NAMES[1]), "y"))
            line = lines_of(drawn)[NAMES[1]]
            for column, shown in {"budget": "x", "mean": "y", "prompts": "customdata"}.items():
                assert numbers(rows, column, **where).tolist() == list(line[shown])
    else:
        label = chart.title if name != "diagnostics" else chart.offered(found)[0].options[0][1]
        means = np.concatenate([ends(trace, "x") for trace in figure.data])
        np.testing.assert_allclose(np.sort(held(rows, figure=label)), np.sort(means))
