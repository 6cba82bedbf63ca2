"""The Aggregate page of several runs: its address, its routes, its colours and axes."""

import dataclasses
from types import SimpleNamespace

import gradio as gr
import pytest

from ckv_core.analysis.aggregate import budget_curves
from ckv_core.analysis.intervals import Intervals
from tests.factories.app import FakeServices, runs_of, store_run
from tests.ui.served_app import by
from ui.aggregate.chosen import take_together
from ui.aggregate.page import AggregatePage, means_table
from ui.charts.aggregate import AGGREGATE_CHARTS
from ui.looks.palette import looks_of


def page_with(*runs) -> AggregatePage:
    with gr.Blocks(analytics_enabled=False):
        return AggregatePage(FakeServices(*runs))


def test_the_address_opens_the_runs_together():
    page = page_with(*runs_of(3))
    asked = SimpleNamespace(query_params={"ids": "runabc0,runabc1, runabc2"})
    text, area, notice, table, *_ = page.open(asked)
    assert (text, area["visible"]) == ("runabc0,runabc1, runabc2", True)
    assert notice["text"].startswith("3 prompts, 17 variants, tiny.")
    assert len(table["rows"]) == 17


@pytest.mark.parametrize("text", ["nosuchrun", "runabc0", "", "x" * 5_000])
def test_what_cannot_be_shown_is_said(text):
    area, notice, *_ = page_with(*runs_of(2)).present(text)
    assert area["visible"] is False
    assert notice["tone"] == "error"
    assert notice["text"].endswith(".")


@pytest.fixture(scope="module")
def guarded(team_app):
    """An app with logins: its client maker, two runs of Ann's and one of Bob's."""
    slugs = [
        store_run(team_app.services, run.request, run.result, owner)
        for run, owner in zip(runs_of(3), ("ann", "ann", "bob"), strict=True)
    ]
    return team_app, slugs


PATHS = ("figure/final", "figure/budget", "figure/wins", "budgets.csv", "means.csv", "wins.csv")


@pytest.mark.parametrize("path", PATHS)
def test_charts_and_data_of_several_runs_are_for_whoever_may_read_all_of_them(guarded, path):
    app, (first, second, foreign) = guarded
    with app.client("ann") as ann, app.client() as nobody:
        own = ann.get(f"/several/{first},{second}/{path}")
        assert own.status_code == 200
        assert own.headers["cache-control"] == "no-store"
        mixed = ann.get(f"/several/{first},{foreign}/{path}")
        unknown = ann.get(f"/several/{first},zzz999zzz999/{path}")
        assert (mixed.status_code, unknown.status_code) == (404, 404)
        assert mixed.text.replace(foreign, "") == unknown.text.replace("zzz999zzz999", "")
        assert nobody.get(f"/several/{first},{second}/{path}").status_code == 401


def test_a_share_link_opens_no_charts_of_several_runs(guarded):
    app, (first, second, _) = guarded
    with by("ann"):
        token = app.services.shares.create(first, "1 day")
    with app.client() as guest:
        guest.get(f"/s/{token}")
        assert guest.get(f"/several/{first},{second}/figure/final").status_code == 401


@pytest.mark.parametrize("name", ["figure/nothing", "figure/agreement", "figure/final?x=<b>"])
def test_a_hostile_address_is_answered_plainly(guarded, name):
    app, (first, *_) = guarded
    with app.client("ann") as ann:
        for slugs in (f"{first},{first}", "..%2f..%2fetc", ",", f"{first},<script>"):
            answer = ann.get(f"/several/{slugs}/{name}")
            assert answer.status_code == 404
            assert not answer.headers["content-type"].startswith("text/html")


def test_a_method_with_its_settings_has_one_look_within_the_page():
    found = take_together(runs_of(2))
    looks: dict[str, set[tuple[str, str]]] = {}
    for row, member in zip(means_table(found)["rows"], found.members, strict=True):
        look = (row["look"]["color"], row["look"]["symbol"])
        looks.setdefault(member.joined.curve_spec, set()).add(look)
    figure = AGGREGATE_CHARTS["final"].figure(found, {})
    for trace, member in zip(figure.data, found.members[1:], strict=True):  # of full: no L1
        looks[member.joined.curve_spec].add((trace.marker.color, trace.marker.symbol))
    curves = [t for t in AGGREGATE_CHARTS["budget"].figure(found, {}).data if t.showlegend is None]
    for trace, curve in zip(curves, budget_curves(found.members), strict=True):
        looks[curve.spec].add((trace.line.color, trace.marker.symbol))
    assert len(looks) == 5  # the full cache and four methods
    assert all(len(used) == 1 for used in looks.values())
    assert len(set.union(*looks.values())) == 5


def test_of_one_budget_every_variant_keeps_the_look_of_its_run():
    runs = runs_of(2)
    for run in runs:
        kept = [v for v in run.result.variants if v.spec == "full" or "budget=64" in v.spec]
        run.result.variants = kept
    rows = means_table(take_together(runs))["rows"]
    variants = runs[0].result.variants
    of_spec = {v.spec: look.value for v, look in zip(variants, looks_of(variants), strict=True)}
    assert [row["look"] for row in rows] == [of_spec[row["cells"]["spec"]["text"]] for row in rows]


def test_shares_that_are_all_the_same_stand_on_an_axis_from_0_to_100_percent():
    found = take_together(runs_of(2))
    figures = Intervals({"token_f1": [0.5, 0.5]})
    found.members[:] = [dataclasses.replace(m, figures=figures) for m in found.members]
    low, high = AGGREGATE_CHARTS["token_f1"].figure(found, {}).layout.xaxis.range
    assert -0.1 < low <= 0
    assert 1 <= high < 1.1
