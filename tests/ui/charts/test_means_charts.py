"""A figure against the budget over several runs; and each chart's table holds what it draws."""

import csv
import dataclasses
import io
from functools import cache

import numpy as np
import pytest

from ckv_core.analysis.aggregate import budget_curves, varied_units
from ckv_core.analysis.intervals import MIN_PROMPTS, mean_interval
from ckv_core.results.figures import figures_in
from tests.factories.app import prompt_run, runs_of, sweep_snapshot
from tests.factories.runs import Swept, sweep_result
from ui.aggregate.chosen import take_together
from ui.aggregate.routes import TABLES
from ui.charts.aggregate import AGGREGATE_CHARTS
from ui.results.chart_views import aggregate_value

CHART = AGGREGATE_CHARTS["budget"]
METHOD = "SnapKV + CriticalKV"


def generated_runs(count: int = MIN_PROMPTS):
    """Sweeps with text, answers and sigma, each on its own prompt."""
    runs = []
    for at in range(count):
        result = sweep_result(generated=True, better=0.5 + 0.04 * at)
        result.prompt = dataclasses.replace(result.prompt, token_ids=(at,))
        runs.append(sweep_snapshot(slug=f"runabc{at}", result=result))
    return runs


def with_specs(runs, change):
    """The same runs with other SPECs."""
    for run in runs:
        run.result.variants = [
            dataclasses.replace(variant, spec=change(variant.spec))
            for variant in run.result.variants
        ]
    return take_together(runs)


def choices(found, name: str) -> list[str]:
    (control,) = [control for control in CHART.offered(found) if control.name == name]
    return [value for value, _ in control.options]


def lines_of(figure):
    """Curves by name."""
    return {trace.name: trace for trace in figure.data if trace.showlegend is not False}


def bars_of(figure, name: str):
    """The intervals of a curve; None where it has none."""
    group = lines_of(figure)[name].legendgroup
    bars = [t for t in figure.data if t.legendgroup == group and t.showlegend is False]
    return bars[0] if bars else None


def test_a_curve_is_the_mean_over_prompts_at_each_budget_with_its_interval():
    figure = CHART.figure(take_together(runs_of(MIN_PROMPTS)), {})
    assert figure.layout.title.text == "Final hidden L1 against the budget"
    assert figure.layout.title.subtitle.text == "mean and 95 % interval, n = 10 prompts"
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


def test_every_curve_has_its_own_mark():
    figure = CHART.figure(take_together(runs_of(2)), {})
    assert list(lines_of(figure)) == [
        "SnapKV",
        *(f"{METHOD}, alpha {alpha}" for alpha in ("0", "0.25", "0.5")),
    ]
    assert len({trace.marker.symbol for trace in figure.data}) == 4


def test_bars_stand_beside_one_another_and_near_their_budget():
    figure = CHART.figure(take_together(runs_of(MIN_PROMPTS)), {})
    places = np.log2([bars_of(figure, name).x for name in lines_of(figure)])
    assert (np.diff(places, axis=0) > 0.05).all()
    assert np.abs(places - np.log2(Swept.BUDGETS)).max() < 1 / 8


def test_bars_stay_by_their_point_however_many_curves_have_none():
    runs = runs_of(MIN_PROMPTS)
    for run in runs[1:]:
        kept = [v for v in run.result.variants if v.params.get("alpha") in (None, 0.5)]
        run.result.variants = kept
    figure = CHART.figure(take_together(runs), {})
    assert len(lines_of(figure)) == 4
    own = [bars_of(figure, name) for name in lines_of(figure)]
    places = np.log2([bars.x for bars in own if bars is not None]) - np.log2(Swept.BUDGETS)
    assert len(places) == 2
    np.testing.assert_allclose(places.sum(axis=0), 0, atol=1e-9)  # to the left and right alike


def test_a_curve_says_what_is_not_recorded_of_it():
    runs = runs_of(2)
    runs[1].result.variants = [
        dataclasses.replace(v, params={}, spec=v.spec.partition(",")[0])
        for v in runs[1].result.variants
        if v.params.get("alpha") in (None, 0)
    ]
    runs[0].result.variants += [
        dataclasses.replace(v, spec=v.spec.partition(",")[0])
        for v in runs[0].result.variants
        if v.params.get("alpha") == 0
    ]
    names = list(lines_of(CHART.figure(join_first(runs), {})))
    assert "SnapKV, group not recorded" in names
    assert "SnapKV + CriticalKV, alpha not recorded" in names


def join_first(runs):
    """With one more prompt of the first run's variants, so that some are in common."""
    other = dataclasses.replace(runs[0].result)
    other.prompt = dataclasses.replace(other.prompt, token_ids=(7, 7))
    return take_together([*runs, sweep_snapshot(slug="runmore", result=other)])


def test_too_few_prompts_give_a_curve_without_bars_and_say_so():
    figure = CHART.figure(take_together(runs_of(MIN_PROMPTS - 1)), {})
    said = "mean; too few prompts for an interval, n = 9 prompts"
    assert figure.layout.title.subtitle.text == said
    assert len(lines_of(figure)) == len(figure.data) == 4


def test_a_figure_that_not_all_prompts_have_is_drawn_with_its_own_n():
    runs = [*generated_runs(8), prompt_run(1_000), prompt_run(2_000)]
    found = take_together(runs)
    assert (
        "n = 8 prompts" in CHART.figure(found, {"quantity": "agreement"}).layout.title.subtitle.text
    )
    for run in runs[8:]:
        run.result.variants[1] = dataclasses.replace(run.result.variants[1], agreement=0.5)
    figure = CHART.figure(take_together(runs), {"quantity": "agreement"})
    said = "mean; 95 % interval where n is at least 10; n = 8 to 10 prompts"
    assert figure.layout.title.subtitle.text == said
    bars = bars_of(figure, "SnapKV").error_y.array
    assert np.isfinite(bars).tolist() == [True, False, False, False]
    assert list(lines_of(figure)["SnapKV"].customdata) == [10, 8, 8, 8]
    assert bars_of(figure, f"{METHOD}, alpha 0") is None


def test_the_final_layer_comes_first_and_only_what_is_known_is_offered():
    for runs in (runs_of(2), generated_runs(2)):
        points = runs[0].result.variants[1:]
        known = [
            key
            for key, figure in figures_in("means").items()
            if any(figure.read(point) is not None for point in points)
        ]
        offered = choices(take_together(runs), "quantity")
        assert offered == sorted(known, key=lambda key: key != "final")
        assert {"final", "kl", "head", "improved_heads"} <= {*offered}


def test_one_budget_alone_is_no_curve():
    runs = runs_of(2)
    for run in runs:
        kept = [v for v in run.result.variants if v.method == "full" or "budget=64" in v.spec]
        run.result.variants = kept
    found = take_together(runs)
    assert CHART.figure(found, {}) is None
    assert "budget" not in [chart["name"] for chart in aggregate_value(["a"], found)["charts"]]


def test_budgets_of_different_units_do_not_share_an_axis():
    percent = {"budget=256": "budget=2.5%", "budget=512": "budget=10%"}

    def change(spec: str) -> str:
        for tokens, share in percent.items():
            spec = spec.replace(tokens, share)
        return spec

    found = with_specs(runs_of(2), change)
    assert choices(found, "unit") == ["tokens", "percent"]
    for unit, budgets in (("tokens", (64, 128)), ("percent", (2.5, 10))):
        figure = CHART.figure(found, {"unit": unit})
        assert {tuple(trace.x) for trace in figure.data} == {budgets}
    assert list(figure.layout.xaxis.ticktext) == ["2.5", "10"]
    assert figure.layout.xaxis.title.text == "budget, percent of the compressed prompt"


def test_what_has_no_budget_is_in_no_curve():
    runs = runs_of(2)
    for run in runs:
        run.result.variants = [
            v
            if v.critical
            else dataclasses.replace(v, method="own", spec=f"own:label={v.spec[-3:]}<b>")
            for v in run.result.variants
        ]
    found = take_together(runs)
    assert [curve.alpha for curve in budget_curves(found.members)] == [0, 0.25, 0.5]
    assert varied_units(budget_curves(found.members), "final") == ["tokens"]


@pytest.mark.parametrize("name", ["budget", "final", "layers", "wins"])
def test_a_name_from_a_hostile_file_stays_text(name):
    hostile = {"quantity": "<b>", "unit": "__class__", "budget": "__class__"}
    runs = runs_of(2)
    for run in runs:
        run.result.variants = [
            dataclasses.replace(variant, label="<img src=x>") for variant in run.result.variants
        ]
    figure = AGGREGATE_CHARTS[name].figure(take_together(runs), hostile)
    assert "<img" not in figure.to_json().replace("\\u003c", "<")


def numbers(rows, column, **where):
    return [
        float(row[column] or "nan")
        for row in rows
        if all(row[key] == cell for key, cell in where.items())
    ]


@cache
def diagnostics_runs():
    runs = generated_runs()
    for at, run in enumerate(runs):
        theta = np.full((Swept.LAYERS, Swept.QUERY_HEADS), 1.0 + at * at, np.float32)
        first = run.result.variants[1]
        run.result.variants[1] = dataclasses.replace(first, analysis={"theta": theta})
    return take_together(runs)


def ends(trace, axis: str):
    """Mean, low and high of every point of a curve of means."""
    bars, mean = trace[f"error_{axis}"], np.asarray(trace[axis], np.float64)
    return np.concatenate([mean, mean - bars.arrayminus, mean + bars.array])


def held(rows, **where):
    return np.concatenate([numbers(rows, column, **where) for column in ("mean", "low", "high")])


@pytest.mark.parametrize("name", sorted(AGGREGATE_CHARTS.keys() - {"layers", "ladder"}))
def test_the_table_of_a_chart_holds_what_it_draws(name):
    found, chart = diagnostics_runs(), AGGREGATE_CHARTS[name]
    rows = list(csv.DictReader(io.StringIO(TABLES[chart.csv](found))))
    figure = chart.figure(found, {})
    if name == "wins":
        first, _ = chart.offered(found)[0].options[0]
        drawn = figure.data[0].z[np.isfinite(figure.data[0].z)]
        written = numbers(rows, "log2_ratio", spec=found.members[int(first)].spec)
        np.testing.assert_allclose([x for x in written if not np.isnan(x)], drawn, rtol=1e-5)
    elif name == "budget":
        for quantity, label in chart.offered(found)[0].options:
            drawn = chart.figure(found, {"quantity": quantity})
            name = f"{METHOD}, alpha 0"
            where = {"curve": "snapkv+critical:alpha=0", "budget_unit": "tokens", "figure": label}
            np.testing.assert_allclose(held(rows, **where), ends(bars_of(drawn, name), "y"))
            line = lines_of(drawn)[name]
            assert numbers(rows, "budget", **where) == list(line.x)
            assert numbers(rows, "mean", **where) == list(line.y)
            assert numbers(rows, "prompts", **where) == list(line.customdata)
    else:
        label = chart.title if name != "laboratory" else chart.offered(found)[0].options[0][1]
        means = np.concatenate([ends(trace, "x") for trace in figure.data])
        np.testing.assert_allclose(np.sort(held(rows, figure=label)), np.sort(means))
