"""The table behind a chart's link holds what the chart draws."""

import csv
import dataclasses
import io

import numpy as np
import pytest

from ckv_core.request.variants import VariantSpec
from ckv_core.results.figures import FIGURES
from tests.factories.runs import Drawn, analysed, drawn_result, sweep_result
from tests.ui.charts.test_ablation import ablation_run
from ui.charts.catalog import CHARTS, figure_of
from ui.run.routes import TABLES

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
    result, rng = drawn_result(), np.random.default_rng(5)
    for index, variant in enumerate(result.variants):
        if variant.perturbation is None:
            continue
        heads = variant.perturbation.head_l1
        arrays = {name: heads * 0 + rng.random(heads.shape, np.float32) for name in BOUNDS}
        arrays["head_alpha"] = rng.random((Drawn.LAYERS, 2), np.float32)
        params = VariantSpec.parse(variant.spec).params
        result.variants[index] = dataclasses.replace(variant, params=params, analysis=arrays)
    return result


def numbers(rows, column, **where):
    """One column of the rows that have these cells; an empty cell is NaN."""
    return np.array(
        [
            float(row[column] or "nan")
            for row in rows
            if all(row[key] == str(cell) for key, cell in where.items())
        ]
    )


def array(quantity):
    """One array of the CriticalKV variant in the analysis table."""
    return lambda rows: numbers(rows, "value", variant=CRITICAL, quantity=quantity)


def wins(rows):
    return np.sign(array("head_l1")(rows) - array("base_head_l1")(rows))


def oracle_means(rows):
    return array("oracle_attention_l1")(rows).reshape(-1, Drawn.QUERY_HEADS).mean(axis=1)


def bound(column, per="query head"):
    """One column of the CriticalKV variant in the table of the bounds."""
    return lambda rows: numbers(rows, column, variant=CRITICAL, per=per)


# Chart -> where its figure has numbers, and the same from the rows of its table.
HOLDS = {
    "layers": (lambda figure: figure.data[1].y, array("hidden_l1")),
    "final": (lambda figure: figure.data[0].x[1:2], array("hidden_l1")),
    "heads": (
        lambda figure: 2 ** figure.data[0].z,
        lambda rows: array("head_l1")(rows) / array("base_head_l1")(rows),
    ),
    "budgets": (
        lambda figure: figure.data[0].y,  # the band, from the fewest to the most
        lambda rows: numbers(rows, "kept_entries"),
    ),
    "alphas": (lambda figure: figure.data[0].z, array("head_alpha")),
    "ladder": (
        lambda figure: figure.data[2].x / 100,
        lambda rows: numbers(rows, "final_hidden_l1_of_base"),
    ),
    "fidelity": (lambda figure: figure.data[0].y, lambda rows: numbers(rows, "forced_kl")),
    "wins": (lambda figure: figure.data[0].z, wins),
    "oracles": (lambda figure: figure.data[-1].y, oracle_means),
    "sigma": (lambda figure: figure.data[0].y, array("sigma_stage1")),
    "bounds": (lambda figure: figure.data[2].y, bound("theta_hat")),
    "tightness": (lambda figure: figure.data[1].x, bound("tightness")),
    **{
        f"sweep-{key}": (
            lambda figure: figure.data[0].y,
            lambda rows, key=key: numbers(rows, key),
        )
        for key in FIGURES
    },
    "alpha-layers": (
        lambda figure: figure.data[0].y,
        lambda rows: numbers(rows, "best_alpha", kv_head=""),
    ),
    "alpha-heads": (lambda figure: figure.data[0].z, lambda rows: numbers(rows, "best_alpha")),
}


def run_for(chart):
    if chart.name == "ladder":
        return ablation_run()
    if chart.name == "fidelity":
        return analysed()
    if chart.csv not in ("sweep", "alphas"):
        return measured_result()
    result = sweep_result(generated=True)
    full = dataclasses.replace(result.variants[0], answer_scores={"exact_match": 1.0})
    # Where the full cache has no exact match, no chart shows any.
    return dataclasses.replace(result, variants=[full, *result.variants[1:]])


# Another choice of a chart -> the same.
CHOSEN = {
    ("bounds", "kv_head"): (lambda figure: figure.data[3].y, bound("theta_relaxed", "KV head")),
    ("tightness", "kv_head"): (lambda figure: figure.data[1].x, bound("tightness", "KV head")),
}


@pytest.mark.parametrize(("name", "per"), [*((name, "head") for name in CHARTS), *CHOSEN])
def test_the_table_of_a_chart_holds_what_it_draws(name, per):
    chart = CHARTS[name]
    result = run_for(chart)
    drawn_of, held_of = CHOSEN.get((name, per), HOLDS[name])
    figure = figure_of(result, name, {"variant": CRITICAL, "per": per})
    drawn = np.asarray(drawn_of(figure), np.float64)
    drawn = drawn[np.isfinite(drawn)]
    held = held_of(list(csv.DictReader(io.StringIO(TABLES[chart.csv](result)))))
    assert drawn.size
    assert len(held) >= len(drawn)
    for value in drawn:
        assert np.isclose(held, value, rtol=1e-5).any(), value
