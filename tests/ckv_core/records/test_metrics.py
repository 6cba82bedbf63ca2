"""Metrics are declared well."""

import re
from math import nan

from ckv_core.records.codec import record_json
from ckv_core.records.metrics import METRICS, metrics_in
from scripts.reference_docs import metrics_table
from tests.factories.runs import bare, measured, variant


def test_every_metric_has_a_row_of_seven_cells():
    rows = [line for line in metrics_table().splitlines() if line.startswith("| `")]
    named = " ".join(row.split(" | ")[0] for row in rows)
    for key in METRICS:
        norm = re.search("_(l2|cosine)", key)
        assert f"`{key.replace(norm[0], '_l1')}`, " in named if norm else f"`{key}`" in named
    for row in rows:
        cells = row.replace("\\|", "").strip("|").split("|")
        assert len(cells) == 7
        assert all(cell.strip() for cell in cells[:5])
        assert len(cells[2].split()) <= 25


def test_no_two_figures_share_a_key_a_header_or_a_label():
    headers = [metric.header or key for key, metric in metrics_in("csv").items()]
    assert len(set(headers)) == len(headers)
    labels = [metric.mean_label for metric in METRICS.values()]
    assert len(set(labels)) == len(labels)


def test_the_worst_head_is_the_largest_that_is_known_in_the_json_too():
    read = METRICS["worst_head"].read
    moved = measured([[1, 7], [nan, nan]], 3)
    assert read(variant("snapkv:budget=64", moved)) == record_json(moved)["worst_head_l1"] == 7
    assert read(variant("snapkv:budget=64", measured([[nan]], 3))) is read(bare("full")) is None
