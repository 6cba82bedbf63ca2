"""The diagnostics on screen: figures as JSON, strips, cards, the table and the form."""

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from ckv_core.errors import ConfigError
from tests.factories.app import SLUG, FakeServices, request, snapshot
from tests.factories.runs import analysed, done_result
from ui.compare.form_values import FormValues
from ui.compare.offers import variant_choices
from ui.results import views
from ui.results.cards import follow_ups_value, generations_value, teacher_forced_value
from ui.results.figure_routes import figure_routes
from ui.tables.summary import summary_value

# --- routes -----------------------------------------------------------------------------------


@pytest.fixture
def client() -> TestClient:
    run = snapshot(result=analysed())
    services = FakeServices(run)
    return TestClient(
        Starlette(routes=figure_routes(lambda r: services.runs.get(r.path_params["slug"])))
    )


def test_figures_and_strips_come_as_json(client):
    figure = client.get(f"/data/{SLUG}/figure/sigma?variant=2").json()
    assert figure["layout"]["title"]["text"].startswith("SnapKV + CriticalKV")
    strip = client.get(f"/data/{SLUG}/1/forced").json()
    assert strip["tokens"] == ["one", " two"]
    assert (strip["top1"], strip["rank"]) == ([1, 0], [1, 7])
    assert strip["steps"][0]["variant"] == [{"text": "<b>", "probability": 0.5}]


def test_a_strip_has_its_tokens_without_a_full_variant():
    result = analysed()
    result.variants = result.variants[1:]
    assert teacher_forced_value(result, 0)["tokens"] == ["one", " two"]


@pytest.mark.parametrize(
    "path", ["x/figure/sigma", f"{SLUG}/figure/x", f"{SLUG}/0/forced", f"{SLUG}/9/forced"]
)
def test_what_does_not_exist_is_a_404(client, path):
    assert client.get(f"/data/{path}").status_code == 404


def test_the_chart_library_is_our_own_file(client):
    answer = client.get("/plotly.js")
    assert answer.headers["content-encoding"] == "gzip"
    assert "plotly.js v" in answer.text[:200]


# --- cards, table, memory ---------------------------------------------------------------------


def test_a_strip_is_offered_once_the_run_is_over():
    cards = generations_value(snapshot(result=analysed()))["cards"]
    assert [card["forced"] for card in cards] == [
        None,
        f"/data/{SLUG}/1/forced",
        cards[2]["forced"],
    ]
    early = generations_value(snapshot(state="running", result=analysed()))["cards"]
    assert not any(card["forced"] for card in early)


def test_the_diagnosticss_files_are_linked_where_the_run_has_them():
    plain, lab = views.links_value(snapshot()), views.links_value(snapshot(result=analysed()))
    assert (plain["forced"], plain["follow_ups"]) == (False, False)
    assert (lab["forced"], lab["follow_ups"]) == (True, True)


def test_follow_ups_are_cards_per_question():
    assert follow_ups_value(snapshot()) == {"questions": []}
    (asked,) = follow_ups_value(snapshot(result=analysed()))["questions"]
    assert asked["question"] == "And then?"
    assert [card["chips"] for card in asked["cards"]] == [[], ["50% agreement"], ["50% agreement"]]
    assert asked["cards"][0]["reference"]


def test_the_table_has_fidelity_and_scores_only_where_measured():
    plain = {column["key"] for column in summary_value(done_result())["columns"]}
    assert not plain & {"forced_top1", "forced_kl", "exact_match", "token_f1"}
    value = summary_value(analysed())
    keys = {column["key"] for column in value["columns"]}
    assert keys >= {"forced_top1", "forced_kl"}
    assert "exact_match" not in keys  # the full cache has none of its own
    cells = value["rows"][1]["cells"]
    assert cells["forced_top1"]["text"] == "50%"
    assert "n = 2" in cells["forced_kl"]["title"]


def test_memory_is_told_estimate_and_peak_apart():
    result = done_result()
    result.memory = {"total": 300 * 2**20, "measured_peak": 200 * 2**20}
    run = snapshot(result=result)
    chips = views.status_value(run, run.created_at)["chips"]
    assert chips[-2:] == ["memory estimate 300 MiB", "peak 200 MiB measured"]
    rows = {row["label"]: row["text"] for row in views.details_value(run)["rows"]}
    assert rows["Memory"] == "estimate in all: 300 MiB\nmeasured peak: 200 MiB"


# --- form -------------------------------------------------------------------------------------


def test_the_diagnostics_survives_the_way_through_the_form():
    asked = request(
        scenario="context-only", analysis=("bounds", "greedy"), follow_ups=("one?", "two?")
    )
    back = FormValues.from_controls(FormValues.from_request(asked).controls()).request()
    assert (back.analysis, back.follow_ups) == (asked.analysis, asked.follow_ups)


def test_follow_ups_need_the_context_only_scenario():
    form = FormValues(context="a text", follow_ups="one?\n\n")
    with pytest.raises(ConfigError, match="context-only"):
        form.request().validate()


def test_the_alpha_per_head_is_offered_as_a_method():
    assert "snapkv+critical_auto" in [spec for _, spec in variant_choices()]
