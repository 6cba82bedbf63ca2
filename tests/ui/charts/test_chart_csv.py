"""Tables of a run: the CSV that a chart names holds what the chart draws, and more."""

import dataclasses

import numpy as np
import pytest

from ckv_core.records.records import VariantMemory
from ckv_core.records.variants import VariantSpec
from tests.factories.runs import Drawn, analysed, drawn_result, sweep_result, with_changes
from tests.factories.tables import numbers, rows_of
from tests.ui.charts.test_ablation import ablation_run
from ui.charts import catalog
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
    "sweep": (lambda figure: figure.data[0].y, column("mean", metric="agreement", minus="")),
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
