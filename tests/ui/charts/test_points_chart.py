"""The chart of points: a metric against budget, memory or perturbation, with intervals."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ckv_core.experiment.runs import together
from ckv_core.experiment.stats import MIN_PROMPTS, mean_interval
from tests.factories.app import prompt_run, runs_of, sweep_snapshot
from tests.factories.runs import Swept, sweep_result, with_changes
from ui.charts.points import POINTS_CHART as BUDGET
from ui.results.views import several_value
from ui.several.page import take_together

METHOD = "CriticalKV-SnapKV"
FINAL = {"quantity": "final"}


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


def choices(chart, found) -> dict[str, list[str]]:
    """Values of each control of a chart."""
    offered = chart.offered(found)
    return {control.name: [value for value, _ in control.options] for control in offered}


def lines_of(figure):
    """Curves by name."""
    return {trace.name: trace for trace in figure.data}


def told(figure) -> str:
    return figure.layout.title.subtitle.text


def test_a_curve_is_the_mean_over_prompts_at_each_budget_with_its_interval():
    figure = BUDGET.figure(of_prompts(MIN_PROMPTS), FINAL)
    assert figure.layout.title.text == "Final hidden L1 against budget"
    assert told(figure) == "mean and 95 % interval, n = 10; lower is closer"
    name = f"{METHOD} alpha 0.25"
    line = lines_of(figure)[name]
    bars = line.error_y
    assert tuple(line.x) == Swept.BUDGETS
    for at, budget in enumerate(Swept.BUDGETS):
        finals = [100 * (0.5 + 0.04 * p) * 64 / budget for p in range(MIN_PROMPTS)]
        found = mean_interval([np.float32(final) for final in finals])
        assert line.y[at] == pytest.approx(found.mean)
        assert line.y[at] + bars.array[at] == pytest.approx(found.high)
        assert line.y[at] - bars.arrayminus[at] == pytest.approx(found.low)
    assert list(figure.layout.xaxis.ticktext) == ["64", "128", "256", "512"]


def test_a_figure_that_not_all_prompts_have_is_drawn_with_its_own_n():
    runs = [*generated_runs(8), prompt_run(1_000), prompt_run(2_000)]
    asked = {"quantity": "agreement"}
    assert "n = 8; higher" in told(BUDGET.figure(take_together(runs), asked))
    for run in runs[8:]:
        run.result.variants[1] = replace(run.result.variants[1], agreement=0.5)
    figure = BUDGET.figure(take_together(runs), asked)
    assert told(figure) == (
        "mean and 95 % interval, n = 8 to 10; higher is closer"  # of shares, of any n
    )
    line = lines_of(figure)["SnapKV"]
    assert [n for _, n in line.customdata] == [10, 8, 8, 8]
    assert line.y[1] > 1  # percent, with the sign behind a space
    assert line.hovertemplate.startswith("%{customdata[0]}: %{y:.4g} %,")
    assert figure.layout.yaxis.ticksuffix == " %"


def test_curves_of_one_run_have_its_own_budgets_and_tokens_in_the_hover():
    def in_percent(variant):
        spec = variant.spec.replace("budget=64", "budget=10%").replace("budget=128", "budget=20%")
        return replace(variant, spec=spec)

    (run,) = only([sweep_snapshot()], lambda v: "=64" in v.spec or "=128" in v.spec)
    figure = BUDGET.figure(together([with_changes(run.result, in_percent)]), {"quantity": "head"})
    assert figure.layout.xaxis.title.text == "budget, percent of the compressed prompt"
    line = lines_of(figure)["SnapKV"]
    assert (tuple(line.x), line.customdata[0][0]) == ((10, 20), "10 % (64 tokens)")


def test_one_budget_alone_is_no_curve():
    found = take_together(only(runs_of(2), lambda v: v.method == "full" or "budget=64" in v.spec))
    assert BUDGET.figure(found, FINAL) is None
    assert several_value("a,b", found)["charts"] == []


def test_budgets_of_different_units_do_not_share_an_axis():
    def in_percent(variant):
        spec = variant.spec.replace("budget=256", "budget=2.5%")
        return replace(variant, spec=spec.replace("budget=512", "budget=10%"))

    found = changed(in_percent)
    assert choices(BUDGET, found)["unit"] == ["tokens", "percent"]
    for unit, budgets in (("tokens", (64, 128)), ("percent", (2.5, 10))):
        figure = BUDGET.figure(found, {"quantity": "final", "unit": unit})
        assert {tuple(trace.x) for trace in figure.data} == {budgets}
    assert list(figure.layout.xaxis.ticktext) == ["2.5", "10"]
    assert figure.layout.xaxis.title.text == "budget, percent of the compressed prompt"


@pytest.mark.parametrize("against", ["memory", "head"])
def test_a_metric_is_drawn_against_what_it_costs_and_moves_too(against):
    found = of_prompts(2)
    figure = BUDGET.figure(found, FINAL | {"against": against})
    row = found.curves[0].rows[0][1]
    cost = {"memory": row.memory[0] / row.memory[1], "head": row.mean("head").mean}
    assert figure.data[0].x[0] == pytest.approx(cost[against])
    assert figure.layout.xaxis.type != "log"
