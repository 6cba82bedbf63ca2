"""The endpoints for programs: what they take and give, who may call them, by every way in."""

import asyncio
import inspect
import json
from dataclasses import replace

import gradio as gr
import httpx
import pytest
from gradio.mcp import GradioMCPServer
from gradio_client import Client
from gradio_client.exceptions import AppError
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from ckv_core.errors import ConfigError
from ckv_core.records.codec import from_json
from tests.factories.app import (
    ENDLESS,
    SLUG,
    FakeServices,
    end_of,
    generating,
    store_study,
    wait_until,
)
from tests.ui.served_app import by
from ui import build
from ui.accounts.access import LOGIN_NEEDED
from ui.api import endpoints as api_module
from ui.api.endpoints import BROKEN, FILES, STOPPING, Api, endpoints
from ui.limits import Limits
from ui.server.identity import SESSION_COOKIE
from ui.settings import Settings

NAMES = [
    *("compare", "get_run", "cancel", "list_runs", "export_run", "list_methods", "list_models"),
]
EMPTY = "The text is empty; paste one or open a file."


@pytest.fixture(scope="module")
def ann(app):
    """Her gradio_client."""
    login = {"cookies": {SESSION_COOKIE: app.services.accounts.sign_in("ann")}}
    quiet = {"verbose": False, "analytics_enabled": False, "download_files": False}
    return Client(app.url, httpx_kwargs=login, **quiet)


@pytest.fixture(scope="module")
def slug(app, ann) -> str:
    """A finished run of ann's."""
    started = ann.predict("one two", question="steps 3", api_name="/compare")
    run = ann.predict(started["slug"], 20, api_name="/get_run")
    assert run["state"] == "done"
    return run["slug"]


# --- what is offered ------------------------------------------------------------------------


def test_the_endpoints_and_nothing_else_are_documented(app):
    with app.client("ann") as client:
        info = client.get("/gradio_api/info").json()
    assert list(info["named_endpoints"]) == [f"/{name}" for name in NAMES]
    assert info["unnamed_endpoints"] == {}
    public = [fn for fn in app.blocks.fns.values() if fn.api_visibility != "private"]
    assert [fn.api_name for fn in public] == NAMES


def test_the_openapi_document_has_every_route_and_argument(app):
    with app.client("ann") as client:
        shown = client.get("/api/openapi.json").json()
        listed = {name: client.get(f"/api/{name}").json() for name in ("methods", "models")}
    described = {(verb.upper(), path) for path, verbs in shown["paths"].items() for verb in verbs}
    served = {(verb, path) for verb, path, _ in endpoints(Api)}
    assert served <= described
    assert {path for _, path in described - served} == {
        f"/data/{{slug}}/{name}" for name in FILES if name != "result.json"
    }
    body = shown["paths"]["/api/runs"]["post"]["requestBody"]["content"]["application/json"]
    assert list(body["schema"]["properties"]) == list(inspect.signature(Api.compare).parameters)[1:]
    assert body["schema"]["required"] == ["context"]
    (first, second) = shown["paths"]["/api/runs/{slug}"]["get"]["parameters"]
    assert (first["in"], second["in"], second["schema"]["default"]) == ("path", "query", 0.0)
    snapkv = next(each for each in listed["methods"]["methods"] if each["name"] == "snapkv")
    assert snapkv["specs"] == ["snapkv", "snapkv+critical", "snapkv+critical_auto"]
    assert set(snapkv["parameters"]) <= set(listed["methods"]["parameters"])
    assert "SmolLM2-135M-Instruct" in [each["name"] for each in listed["models"]["models"]]


# --- gradio_client --------------------------------------------------------------------------


def test_a_run_is_started_followed_found_and_exported(ann):
    started = ann.predict(
        context="alpha beta", question="steps 4", answer="w2", api_name="/compare"
    )
    assert started["link"] == f"/r/{started['slug']}"
    run = ann.predict(started["slug"], wait_s=20, api_name="/get_run")
    assert (run["state"], run["over"], run["model"]) == ("done", True, "tiny")
    assert [v["text"] for v in run["variants"]] == ["w0 w1 w2 w3 "]
    found = ann.predict(text="steps 4", state="done", api_name="/list_runs")
    assert started["slug"] in [row["slug"] for row in found["runs"]]
    result = from_json(ann.predict(started["slug"], api_name="/export_run"))
    assert result.variants[0].text == "w0 w1 w2 w3 "


def test_a_run_of_many_samples_is_read_by_the_same_endpoints(app, ann):
    with by("ann"):
        slug = store_study(app.services, owner="ann")
        exported = app.services.studies.reading(slug)
    run = ann.predict(slug, api_name="/get_run")
    assert (run["state"], run["over"], run["samples"]) == ("done", True, len(exported.samples))
    assert run["verdict"]["headline"] == exported.verdict.headline
    whole = ann.predict(slug, api_name="/export_run")
    assert whole["table"] == run["table"]
    assert whole["decision"] == run["decision"]
    assert len(whole["samples"]) == len(exported.results)
    assert ann.predict(slug, api_name="/cancel")["message"].startswith("This run is over already")


def test_a_sweep_is_a_grid_of_points_on_one_prompt(app, ann):
    arguments = {
        "variants": ["snapkv", "snapkv+critical"],
        "budget": "64, 10%",
        "alpha": "0.5",
        "max_new_tokens": 0,
    }
    started = ann.predict("a long text", question="steps 2", **arguments, api_name="/compare")
    with app.client("ann") as client:
        more = {"max_new_tokens": 3, "analysis": ["bounds"]}
        other = client.post("/api/runs", json={"context": "a long text", **arguments, **more})
    assert other.status_code == 202
    with by("ann"):
        slugs = (started["slug"], other.json()["slug"])
        one, two = (end_of(app.services, slug).request for slug in slugs)
    assert (one.kind, one.max_new_tokens, one.analysis) == ("sweep", 0, ())
    points = "full snapkv:budget=64 snapkv:budget=10% snapkv+critical:budget=64,alpha=0.5"
    points += " snapkv+critical:budget=10%,alpha=0.5"
    assert [spec.spec for spec in one.specs] == [spec.spec for spec in two.specs] == points.split()
    assert (two.max_new_tokens, two.analysis) == (3, ("bounds",))


def test_kept_positions_of_other_code_are_taken(app, ann):
    document = {"schema": 1, "variants": [{"label": "mine", "retained": [0, 1]}]}
    arguments = {"context": "a b c", "variants": ["full"], "own_indices": [document]}
    slug = ann.predict(**arguments, api_name="/compare")["slug"]
    with by("ann"):
        (own,) = app.services.snapshot(slug).request.own_indices
        end_of(app.services, slug)
    assert own.label == "mine"
    document["variants"][0]["retained"] = [0, -1]
    with pytest.raises(AppError, match=r"own_indices\[0\]\.variants\[0\]\.retained"):
        ann.predict(**arguments, api_name="/compare")


def test_waiting_ends_with_the_time_or_with_the_run(app, ann):
    slug = ann.predict("one", question=ENDLESS, api_name="/compare")["slug"]
    run = ann.predict(slug, wait_s=0.3, api_name="/get_run")
    assert not run["over"]
    waiting = ann.submit(slug, wait_s=20, api_name="/get_run")
    with by("ann"):
        app.services.cancel_run(slug)
    assert waiting.result(15)["state"] == "cancelled"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"context": ""}, EMPTY),
        ({"context": 5}, "The request is wrong at context: text is expected, got 5."),
        ({"variants": ["no_such"]}, "Unknown method 'no_such'."),
        ({"variants": ["full"] * 17}, "17 methods are too many; one run takes up to 16"),
        ({"alpha": 2}, "wrong at alpha: text is expected"),
        ({"budget": ",".join(map(str, range(40, 100)))}, "over 256 points"),
    ],
)
def test_what_is_wrong_is_one_sentence_by_either_way(app, ann, arguments, sentence):
    asked = {"context": "x", **arguments}
    with pytest.raises(AppError) as caught:
        ann.predict(**asked, api_name="/compare")
    with app.client("ann") as client:
        answer = client.post("/api/runs", json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"] == str(caught.value)
    assert sentence in str(caught.value)


def test_an_unforeseen_failure_tells_nothing(app, ann, monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("secret detail")

    monkeypatch.setattr(app.services, "view", fail)
    with pytest.raises(AppError, match=BROKEN):
        ann.predict("abc123def456", api_name="/get_run")


def test_a_run_too_big_for_one_answer_names_the_file(monkeypatch):
    endpoints = Api(FakeServices(), Settings.from_environ({}))
    assert endpoints.export_run(SLUG)["schema"] == 1
    monkeypatch.setattr(api_module, "MOST_POSITIONS", 1)
    with pytest.raises(ConfigError, match=f"/data/{SLUG}/bundle.zip"):
        endpoints.export_run(SLUG)


# --- plain HTTP -----------------------------------------------------------------------------


def test_the_same_by_plain_http(app):
    with app.client("ann") as client:
        started = client.post("/api/runs", json={"context": "a b", "question": "steps 2"})
        assert started.status_code == 202
        slug = started.json()["slug"]
        run = client.get(f"/api/runs/{slug}", params={"wait_s": 20})
        assert run.json()["variants"][0]["text"] == "w0 w1 "
        assert run.headers["cache-control"] == "no-store"
        rows = client.get("/api/runs", params={"limit": 1}).json()["runs"]
        assert [row["slug"] for row in rows] == [slug]
        for path in run.json()["files"].values():
            assert client.get(path).status_code == 200, path


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 100_000, b'{"contexts": "x"}', b"{}"])
def test_a_body_that_is_no_call_is_refused(app, body):
    with app.client("ann") as client:
        answer = client.post("/api/runs", content=body)
    too_deep = 413  # refused before it is parsed
    assert answer.status_code == (too_deep if body.startswith(b"[[") else 400)
    assert answer.json()["error"].endswith(".")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("?limit=x", 400),
        ("?limit=1000", 400),
        ("?offset=-1", 400),
        ("?state=lost", 400),
        ("?page=2", 400),
        ("/zzz999zzz999", 404),
        ("/nope", 404),
        ("/zzz999zzz999?wait_s=nan", 400),
        ("/zzz999zzz999?wait_s=61", 400),
    ],
)
def test_a_query_that_cannot_be_meant_is_refused(app, path, status):
    with app.client("ann") as client:
        answer = client.get(f"/api/runs{path}")
    assert answer.status_code == status
    assert answer.json()["error"].endswith(".")


def test_cancelling_by_plain_http_any_number_of_times_does_no_more_than_once(app):
    with app.client("ann") as client:
        body = {"context": "x", "question": ENDLESS}
        slug = client.post("/api/runs", json=body).json()["slug"]
        with by("ann"):
            wait_until(app.services, slug, generating)
        asked = client.post(f"/api/runs/{slug}/cancel")
        answer = asked.json()
        assert (answer["slug"], answer["message"]) == (slug, STOPPING)
        assert asked.status_code == (200 if answer["over"] else 202)
        assert asked.headers["cache-control"] == "no-store"
        first = client.get(f"/api/runs/{slug}", params={"wait_s": 20}).json()
        assert (first["state"], first["variants"][0]["text"][:3]) == ("cancelled", "w0 ")
        again = client.post(f"/api/runs/{slug}/cancel")
        message = "This run is over already (cancelled); nothing was changed."
        body = {"slug": slug, "state": "cancelled", "over": True, "message": message}
        assert (again.status_code, again.json()) == (200, body)
        assert client.get(f"/api/runs/{slug}").json() == first


# --- who may --------------------------------------------------------------------------------


def test_limits_hold_for_programs_too(app, monkeypatch):
    monkeypatch.setattr(app.services._room, "limits", Limits(queue_per_user=1))
    with app.client("bob") as client:
        body = {"context": "x", "question": ENDLESS}
        slug = client.post("/api/runs", json=body).json()["slug"]
        refused = client.post("/api/runs", json={"context": "x"})
    assert refused.status_code == 429
    assert "this app's limit for one user" in refused.json()["error"]
    with by("bob"):
        app.services.cancel_run(slug)
        end_of(app.services, slug)


def test_only_who_may_change_a_run_cancels_it(app, ann):
    slug = ann.predict("one", question=ENDLESS, api_name="/compare")["slug"]
    with by("ann"):
        token = app.services.shares.create(slug, "1 day")
    with app.client() as guest, app.client("bob") as bob:
        assert guest.get(f"/s/{token}").status_code == bob.get(f"/s/{token}").status_code == 303
        assert LOGIN_NEEDED in app.call(guest, "Api.get_run", slug, 0).text
        assert guest.post(f"/api/runs/{slug}/cancel").status_code == 401
        assert bob.get(f"/api/runs/{slug}").status_code == 200
        assert bob.post(f"/api/runs/{slug}/cancel").status_code == 404
    with by("ann"):
        wait_until(app.services, slug, generating)
        app.services.cancel_run(slug)
        end_of(app.services, slug)


# --- MCP --------------------------------------------------------------------------------------


def by_mcp(app, user, work):
    """Do async work with an MCP session of a user; nobody's without a name."""

    async def run():
        headers = {}
        if user:
            with by(user):
                token = app.services.accounts.make_token("mcp", "Read and write", "7 days")
            headers["Authorization"] = f"Bearer {token}"
        url = f"{app.url}/gradio_api/mcp/"
        async with (
            httpx.AsyncClient(headers=headers, timeout=20) as http,
            streamable_http_client(url, http_client=http) as (reader, writer, _),
            ClientSession(reader, writer) as session,
        ):
            await session.initialize()
            return await work(session)

    return asyncio.run(run())


def call_tool(app, user, name, arguments):
    """Whether the call failed, and the text of its answer."""
    answer = by_mcp(app, user, lambda session: session.call_tool(name, arguments))
    return answer.isError, answer.content[0].text


def test_mcp_has_the_endpoints_as_tools_with_descriptions(app):
    tools = by_mcp(app, "ann", lambda session: session.list_tools()).tools
    assert [tool.name for tool in tools] == NAMES
    for tool in tools:
        assert tool.description
        arguments = tool.inputSchema["properties"]
        assert all(argument["description"] for argument in arguments.values()), tool.name


def test_mcp_acts_for_who_is_logged_in(app, slug):
    failed, text = call_tool(app, "ann", "cancel", {"slug": slug})
    assert (failed, json.loads(text)["over"]) == (False, True)
    for name in ("get_run", "cancel"):
        failed, text = call_tool(app, "bob", name, {"slug": slug})
        assert (failed, text[:15]) == (True, "There is no run")
    assert call_tool(app, "ann", "compare", {"context": ""}) == (True, EMPTY)


def test_mcp_refuses_strangers(app):
    with pytest.raises(BaseExceptionGroup) as caught:
        by_mcp(app, "", lambda session: session.list_tools())
    assert "401" in repr(caught.value.exceptions)


def test_mcp_is_off_unless_wanted(app, open_app):
    assert app.blocks.mcp_server is True
    assert open_app.blocks.mcp_server is False


def test_a_missing_mcp_package_is_one_sentence(app, monkeypatch):
    def missing(*_: object) -> None:
        raise ImportError("no mcp")

    monkeypatch.setattr(GradioMCPServer, "__init__", missing)
    monkeypatch.setattr(build, "build_app", lambda *_: gr.Blocks())  # all pages take seconds
    with pytest.raises(ConfigError, match=r"requirements-mcp\.txt"):
        build.build_site(app.services, replace(Settings.from_environ({}), mcp=True))
