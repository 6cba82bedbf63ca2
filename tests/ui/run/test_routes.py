"""Routes of one run: data, files and links; a visit decodes a stored run once."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from storage import repository
from storage.bundle import FROM_RESULT
from tests.factories.app import (
    SLUG,
    SWEEP_SLUG,
    FakeServices,
    request,
    running,
    snapshot,
    store_run,
)
from tests.factories.runs import TEN_TOKENS, done_result
from ui.accounts.turns import Turns
from ui.charts.catalog import CHARTS
from ui.compare.form_values import CONTROL_NAMES
from ui.compare.page import ComparePage
from ui.run.routes import TABLES, build_routes
from ui.server.guard import Guard
from ui.server.identity import Identity
from ui.settings import Settings
from ui.shell.plain_pages import REFUSALS

SETTINGS = Settings.from_environ({})


def client(services: FakeServices, settings: Settings = SETTINGS) -> TestClient:
    services.users = settings.users
    identity = None
    if settings.users:
        identity = Identity(services.users, services.accounts, services.shares)
    app = Starlette(
        routes=[*build_routes(services), Route("/echo", echo, methods=["POST"])],
        middleware=[Middleware(Guard, settings=settings, identity=identity, turns=Turns())],
        exception_handlers=REFUSALS,
    )
    return TestClient(app, base_url="http://127.0.0.1:7860", follow_redirects=False)


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


@pytest.mark.parametrize("slug", ["nope", "..%2f..", "a b", "zzz999zzz999"])
@pytest.mark.parametrize("tail", ["prompt", "0/retained", "result.json", "table.csv", "sweep.csv"])
def test_data_of_an_unknown_run_is_404(slug, tail):
    assert client(FakeServices()).get(f"/data/{slug}/{tail}").status_code == 404


def test_a_table_of_a_run_with_an_unreadable_spec_is_still_a_table():
    result = done_result()
    result.variants[1] = replace(result.variants[1], spec="snapkv:budget=nothing")
    answer = client(FakeServices(snapshot(result=result))).get(f"/data/{SLUG}/sweep.csv")
    assert answer.status_code == 200
    assert "snapkv" in answer.text


def test_retained_bits_are_those_of_the_variant():
    services = FakeServices()
    response = client(services).get(f"/data/{SLUG}/1/retained")
    assert response.content == services.retained(SLUG, 1).bits
    assert response.headers["content-type"] == "application/octet-stream"
    assert "immutable" in response.headers["cache-control"]
    assert client(services).get(f"/data/{SLUG}/0/retained").status_code == 404
    assert client(services).get(f"/data/{SLUG}/77/retained").status_code == 404


HUGE = ("99999999999999999999", "9" * 5000, "99999", "x", "-1", "²")


@pytest.mark.parametrize("tail", ["retained", "forced"])
@pytest.mark.parametrize("index", HUGE, ids=lambda text: text[:6])
def test_data_of_a_variant_that_no_run_has_is_404(index, tail):
    assert client(FakeServices()).get(f"/data/{SLUG}/{index}/{tail}").status_code == 404


def test_the_prompt_is_kept_by_browsers_only_once_the_run_is_over():
    result = snapshot().result
    live = client(FakeServices(running(result=result))).get(f"/data/{SLUG}/prompt")
    done = client(FakeServices()).get(f"/data/{SLUG}/prompt")
    assert live.json()["pieces"] == list(TEN_TOKENS.pieces)
    assert live.headers["cache-control"] == "no-store"
    assert "immutable" in done.headers["cache-control"]


def test_exports_are_downloads():
    routes = client(FakeServices())
    result = json.loads(routes.get(f"/data/{SLUG}/result.json").text)
    assert result["schema"] == 1
    for name in ("table", "analysis", "sweep"):
        response = routes.get(f"/data/{SLUG}/{name}.csv")
        assert response.status_code == 200
        assert response.headers["content-disposition"].endswith(f'{SLUG}-{name}.csv"')


@pytest.fixture
def decodes(monkeypatch) -> list[object]:
    """One item for each time that a stored run is decoded."""
    seen: list[object] = []
    load = repository._load_result
    monkeypatch.setattr(repository, "_load_result", lambda *row: seen.append(1) or load(*row))
    return seen


def test_a_visit_with_its_charts_and_tables_decodes_a_run_once(open_app, decodes):
    result = done_result()
    slug = store_run(open_app.services, request(), result)
    figures = [f"figure/{name}" for name, chart in CHARTS.items() if chart.has_data(result)]
    assert len(figures) > 3
    parts = ["prompt", "1/retained", "result.json", "report.html", *figures]
    parts += [f"{name}.csv" for name in TABLES]
    with open_app.client() as client, ThreadPoolExecutor(8) as pool:
        # Harder than a visit: the page itself would decode the run before its charts ask.
        answers = list(pool.map(lambda part: client.get(f"/data/{slug}/{part}"), parts))
        assert client.get(f"/run?id={slug}").status_code == 200
    assert {answer.status_code for answer in answers} == {200}
    assert len(decodes) == 1


# --- running again -------------------------


def test_a_run_from_a_result_file_fills_the_form_and_says_that_the_question_lacks():
    services = FakeServices(snapshot(), imported := snapshot(slug=SWEEP_SLUG))
    imported.result.environment["imported"] = f"2026-01-02 from {FROM_RESULT}"
    with gr.Blocks(analytics_enabled=False):
        page = ComparePage(services, Settings.from_environ({}), models=["m"], examples={})
    for slug, lacks in ((SLUG, False), (SWEEP_SLUG, True)):
        told = page.open(SimpleNamespace(query_params={"from": slug}))[len(CONTROL_NAMES)]
        assert "run them again" in told["text"]
        assert ("type it below" in told["text"]) == lacks
