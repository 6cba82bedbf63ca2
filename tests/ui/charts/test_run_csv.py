"""Tables of the charts: the CSV holds what the figures show."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from tests.factories.runs import Drawn, drawn_result
from ui.charts import run_csv as tables


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_layers_csv_holds_what_the_lines_show():
    result = drawn_result()
    table = rows(tables.layers_csv(result))
    assert len(table) == 3 * Drawn.LAYERS
    assert table[Drawn.WHOLE[0]]["mean_head_l1"] == ""
    values = [float(row["layer_hidden_l1"]) for row in table if row["variant"] == "3"]
    np.testing.assert_allclose(values, result.variants[3].perturbation.layer_hidden_l1)


def test_heads_csv_holds_what_the_grids_show():
    table = rows(tables.heads_csv(drawn_result()))
    assert len(table) == 3 * Drawn.LAYERS * Drawn.QUERY_HEADS
    plain, against_base = table[0], table[Drawn.LAYERS * Drawn.QUERY_HEADS]
    assert plain["base_head_l1"] == plain["log2_ratio"] == ""
    assert float(against_base["log2_ratio"]) == pytest.approx(-np.log2(1.5), rel=1e-5)


def test_budgets_csv_sums_to_the_kept_set():
    result = drawn_result()
    table = rows(tables.budgets_csv(result))
    kept = sum(int(row["kept_entries"]) for row in table if row["variant"] == "2")
    assert kept == result.variants[2].retained.mask().sum()


def test_csv_numbers_stay_numbers():
    result = drawn_result()
    found = replace(
        result.variants[1].perturbation, layer_hidden_l1=np.full(Drawn.LAYERS, -1.5, np.float32)
    )
    result.variants[1] = replace(result.variants[1], perturbation=found)
    assert rows(tables.layers_csv(result))[0]["layer_hidden_l1"] == "-1.5"
