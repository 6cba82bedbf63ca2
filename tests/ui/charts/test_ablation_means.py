"""The ablation over several runs: its chart, its file and when there is none."""

import csv
import dataclasses
import io

import numpy as np
import pytest

from ckv_core.analysis.intervals import mean_interval
from ckv_core.request.variants import VariantSpec
from tests.factories.app import snapshot
from tests.ui.charts.test_ablation import ablation_run
from ui.aggregate.chosen import take_together
from ui.aggregate.routes import TABLES
from ui.charts.ablation import ablation_figure
from ui.charts.aggregate import AGGREGATE_CHARTS

CHART = AGGREGATE_CHARTS["ladder"]


def taken(count: int, *, steps: int | None = None):
    """Ablations on as many prompts, each with its own final L1; and the results they came from."""
    results = []
    for at in range(count):
        found = ablation_run(steps=steps)
        tokens = tuple(range(at, at + len(found.prompt.token_ids)))
        found.prompt = dataclasses.replace(found.prompt, token_ids=tokens)
        for i, variant in enumerate(found.variants):
            moved = variant.perturbation
            factor = np.float32(1 + at if i else 1)
            moved = dataclasses.replace(moved, layer_hidden_l1=moved.layer_hidden_l1 * factor)
            params = dict(VariantSpec.parse(variant.spec).params)
            found.variants[i] = dataclasses.replace(variant, perturbation=moved, params=params)
        results.append(found)
    runs = [snapshot(slug=f"ablation{at}", result=run) for at, run in enumerate(results)]
    return take_together(runs), results


def test_each_bar_is_the_mean_over_the_prompts_with_its_interval():
    found, results = taken(10)
    figure, each = CHART.figure(found, {}), [ablation_figure(result) for result in results]
    assert figure.layout.title.subtitle.text.endswith("n = 10 prompts")
    for at, bar in enumerate(figure.data):
        shares = np.stack([one.data[at].x for one in each])
        np.testing.assert_allclose(bar.x, shares.mean(axis=0), rtol=1e-5)
        assert bar.customdata == each[0].data[at].customdata
    final = np.stack([one.data[2].x for one in each])[:, 3]
    whiskers, alone = figure.data[2].error_x, mean_interval(final.tolist())
    assert figure.data[2].x[3] + whiskers.array[3] == pytest.approx(alone.high, rel=1e-3)
    assert figure.data[2].x[3] - whiskers.arrayminus[3] == pytest.approx(alone.low, rel=1e-3)
    assert figure.layout.xaxis.range[1] > (figure.data[2].x + whiskers.array).max()


def test_of_too_few_prompts_there_are_bars_with_their_numbers_alone():
    figure = CHART.figure(taken(2)[0], {})
    assert all(bar.error_x.array is None and bar.text is not None for bar in figure.data)


def test_the_file_holds_what_the_chart_draws():
    found, _ = taken(10)
    figure = CHART.figure(found, {})
    rows = list(csv.DictReader(io.StringIO(TABLES["ladder"](found))))
    names = ("heads_below_base", "head_l1_of_base", "final_hidden_l1_of_base")
    for bar, name in zip(figure.data, names, strict=True):
        own = [row for row in rows if row["figure"] == name]
        skipped = len(bar.x) - len(own)  # no share of heads below itself
        assert skipped == (name == "heads_below_base")
        written = [100 * float(row["mean"]) for row in own]
        np.testing.assert_allclose(written, bar.x[skipped:], rtol=1e-5)
        assert {row["prompts"] for row in own} == {"10"}


def test_runs_without_a_ablation_have_no_such_chart():
    assert CHART.figure(taken(2, steps=2)[0], {}) is None
