"""A metric is one number wherever it is read: page, terminal, files, result JSON and chart."""

import io
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from functools import cache
from math import fsum

import numpy as np
import pytest

from ckv_core.cli.tables import print_points
from ckv_core.experiment.points import POINT_METRICS, Points
from ckv_core.experiment.points_table import points_json, points_table
from ckv_core.experiment.runs import together
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import ANALYSIS_ARRAYS, METRICS, metrics_in
from ckv_core.records.records import Timed
from tests.factories.runs import Swept, sweep_result, with_changes
from tests.factories.tables import rows_of
from ui.charts.points import POINTS_CHART
from ui.tables.points import points_csv, summary_csv, summary_value

SHAPES = {
    "head": (Swept.LAYERS, Swept.QUERY_HEADS),
    "kv_head": (Swept.LAYERS, Swept.KV_HEADS),
    "layer": (Swept.LAYERS,),
    "model": (1,),
    "step": (2,),
}
SPEC = "snapkv+critical:budget=128,alpha=0.25"
# A score is of many samples; made-up arrays have no bound that is shared by a group.
MEANS = [key for key in POINT_METRICS if key != "score"]


@cache
def runs() -> tuple[RunResult, ...]:
    """Three sweeps on a prompt each, with a number for every metric."""
    rng = np.random.default_rng(7)

    def measured(found):
        arrays = {
            key: rng.random(SHAPES[metric.axes], np.float32)
            for key, metric in ANALYSIS_ARRAYS.items()
        }
        scores = {key: float(rng.random()) for key in Swept.SCORES} | {"exact_match": 1.0}
        ended = {"stopped": "eos", "first_difference": 1, "token_ids": (1, 2)}
        ended["receipt"] = replace(found.receipt, read_bytes=int(rng.integers(1, 2**24)))
        return replace(found, analysis=arrays, answer_scores=scores, time=timed(), **ended)

    def timed() -> Timed:
        rates = {batch: float(rng.random()) for batch in ("1", "8", "32", "64")}
        return Timed(
            added_first_token_ms=float(rng.random()),
            step_ms=tuple(sorted(map(float, rng.random(3)))),
            steps=32,
            tokens_per_s=rates,
            bound="memory",
            others=0.0,
        )

    made = []
    for at in range(3):
        result = with_changes(sweep_result(generated=True, better=0.5 + at / 10), measured)
        answer = {"answer_found": True, "answer_scores": {"exact_match": 1.0}, "stopped": "eos"}
        result.variants[0] = replace(result.variants[0], **answer)
        made.append(replace(result, prompt=replace(result.prompt, token_ids=(at,))))
    return tuple(made)


@cache
def points(count: int) -> Points:
    return together(runs()[:count])


def expected(key: str, count: int) -> float:
    """By the registry alone."""
    values = [
        METRICS[key].read(v) for run in runs()[:count] for v in run.variants if v.spec == SPEC
    ]
    return fsum(values) / len(values)


def cell_of(key: str, count: int) -> dict:
    rows = points_table(points(count)).value()["rows"]
    (cells,) = [row["cells"] for row in rows if row["cells"]["spec"]["text"] == SPEC]
    return cells[key]


@cache
def terminal(count: int) -> str:
    with redirect_stdout(io.StringIO()) as written:
        print_points(points(count))
    return written.getvalue()


def in_terminal(key: str, count: int) -> float:
    """Its text is that of the page, which is of the number."""
    cell = cell_of(key, count)
    assert cell["text"] in terminal(count)
    return cell["value"]


def in_file(key: str, count: int) -> float:
    (row,) = [
        row
        for row in rows_of(points_csv(points(count)))
        if (row["spec"], row["metric"], row["minus"]) == (SPEC, key, "")
    ]
    (own,) = [each.mean(key) for each in points(count).rows if each.spec == SPEC]
    ends = ["" if end is None else str(end) for end in (own.low, own.high)]
    assert [row["low"], row["high"], row["samples"]] == [*ends, str(count)]
    return float(row["mean"])


def in_json(key: str, count: int) -> float:
    (row,) = [row for row in points_json(points(count))["variants"] if row["spec"] == SPEC]
    (own,) = [each.mean(key) for each in points(count).rows if each.spec == SPEC]
    assert row["metrics"][key] == asdict(own)
    return row["metrics"][key]["mean"]


def in_chart(key: str, count: int) -> float:
    figure = POINTS_CHART.figure(points(count), {"quantity": key})
    (line,) = [trace for trace in figure.data if "alpha 0.25" in trace.name]
    at = list(line.x).index(128)
    return float(line.y[at]) / (100 if METRICS[key].is_share else 1)  # drawn in percent


PLACES = {
    "page": lambda key, count: cell_of(key, count)["value"],
    "terminal": in_terminal,
    "file": in_file,
    "json": in_json,
    "chart": in_chart,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("key", MEANS)
def test_a_metric_is_the_same_number_in_every_place(key, place):
    left_out = {"page", "terminal", "chart"} & {place} and METRICS[key].is_binary
    for count in (1,) if place == "result" else (3,) if left_out else (1, 3):
        assert PLACES[place](key, count) == pytest.approx(expected(key, count), rel=1e-5)


@pytest.mark.parametrize("key", metrics_in("csv"))
def test_the_file_of_a_run_has_each_metric_unrounded(key):
    metric = METRICS[key]
    rows = rows_of(summary_csv(runs()[0]))
    for row, variant in zip(rows, runs()[0].variants, strict=True):
        value = metric.read(variant)
        assert row[metric.header or key] == ("" if value is None else str(value))


@pytest.mark.parametrize("key", metrics_in("table"))
def test_the_table_of_a_run_has_each_metric_with_its_definition(key):
    table = summary_value(runs()[0], ended=True)
    known = any(METRICS[key].read(variant) is not None for variant in runs()[0].variants)
    columns = {column["key"]: column for column in table["columns"]}
    assert (key in columns) == known
    assert not known or columns[key]["help"].endswith(".")
