"""What ranks query-aware beside query-agnostic methods says so at its head and marks its rows."""

import dataclasses

import pytest

from ckv_core.experiment.points_table import points_table
from ckv_core.experiment.regimes import Regimes, regimes_of
from ckv_core.experiment.sweep import sweep_points, sweep_savings
from ckv_core.experiment.verdict import verdict_of
from tests.factories.app import runs_of, snapshot, sweep_snapshot
from tests.factories.runs import analysed, done_result, mixed, sweep_result
from ui.charts.catalog import CHARTS
from ui.charts.points import POINTS_CHART
from ui.results import views
from ui.several.page import take_together
from ui.tables.points import summary_value

MARKS = {"query-aware", "query-agnostic"}


def same(given):
    return given


def together(change):
    runs = [dataclasses.replace(run, result=change(run.result)) for run in runs_of(2)]
    return take_together(runs)


def done(change, **changes):
    return snapshot(result=change(done_result()), **changes)


# What is shown of runs that went through `change`.
VALUES = {
    "points": lambda change: sweep_points(change(sweep_result())).value(),
    "savings": lambda change: sweep_savings(change(sweep_result()), 1).value(),
    "means": lambda change: points_table(together(change)).value(),
    "charts": lambda change: views.perturbation_value(done(change)),
    "curves": lambda change: views.curves_value(
        dataclasses.replace(sweep_snapshot(), result=change(sweep_result()))
    ),
    "summary": lambda change: summary_value(change(done_result())),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_table_or_a_block_of_charts_of_both_regimes_says_so_and_marks_its_rows(name):
    plain, both = VALUES[name](same), VALUES[name](mixed)
    assert (plain["head"], both["head"][:12]) == ("", "Query-aware ")
    for value, wanted in ((plain, set()), (both, MARKS)):
        if rows := value.get("rows"):
            assert {row["regime"] for row in rows} - {""} == wanted


def names_in(figure) -> str:
    """All that a figure calls its lines and bars."""
    ticks = [text for axis in figure.select_yaxes() for text in axis.ticktext or ()]
    return " | ".join([*(trace.name or "" for trace in figure.data), *ticks])


def run_chart(name, result):
    return lambda change: CHARTS[name].figure(change(result), {})


RUN_CHARTS = ("layers", "final", "budgets", "oracles", "tightness", "fidelity")
FIGURES = {
    **{f"run: {name}": run_chart(name, analysed()) for name in RUN_CHARTS},
    "sweep": lambda change: CHARTS["sweep"].figure(
        change(sweep_result(generated=True)), {"quantity": "kl"}
    ),
    "several": lambda change: POINTS_CHART.figure(together(change), {}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_chart_names_the_regime_of_each_variant(name):
    assert "query-a" not in names_in(FIGURES[name](same))
    told = names_in(FIGURES[name](mixed))
    assert all(mark in told for mark in MARKS)


def written():
    """A sweep whose points have written something."""
    ended = {"stopped": "eos", "token_ids": (1,)}
    result = sweep_result(generated=True)
    result.variants = [dataclasses.replace(v, **ended) for v in result.variants]
    return result


@pytest.mark.parametrize("result", [done_result(), written()])
def test_a_verdict_over_both_regimes_says_so_and_marks_its_members(result):
    plain, both = verdict_of(result), verdict_of(mixed(result))
    assert (plain.regimes, both.regimes[:12]) == ("", "Query-aware ")
    assert both.to_json()["regimes"] == both.regimes
    if result.kind == "sweep":  # its grid marks the methods
        return
    groups = [group for group in both.groups if group.label != "Baseline"]
    assert {member.regime for group in groups for member in group.members} == MARKS
    assert {m.regime for group in plain.groups for m in group.members} == {""}
    assert any("query-agnostic" in group.sentence for group in both.groups)


def test_only_where_the_context_alone_is_compressed_are_they_called_comparable():
    methods = ["full", "snapkv", "keydiff", "gone"]
    told = regimes_of(methods, {"context-only"})
    assert "No method saw the question" in told.head
    assert told.marks == ("", "query-aware", "query-agnostic", "")
    for scenarios in ({"regular"}, {"regular", "context-only"}):
        assert "For a fair comparison" in regimes_of(methods, scenarios).head
    assert regimes_of(methods, ()) == Regimes("", ("",) * 4)
