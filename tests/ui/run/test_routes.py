"""Routes, guards and settings, without a server or a model."""

import base64
import json
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ckv_core.errors import ConfigError
from storage.repository import is_slug
from tests.factories.app import BAD_SLUGS, SLUG, FakeServices, request, running, snapshot
from tests.factories.runs import TEN_TOKENS, done_result
from ui.run.routes import build_routes
from ui.server.identity import Identity
from ui.server.middleware import Guard
from ui.settings import Settings

SETTINGS = Settings.from_environ({})


# --- routes ---------------------------------------------------------------------------------


def client(services: FakeServices, settings: Settings = SETTINGS) -> TestClient:
    services.users = settings.users
    identity = Identity(services) if settings.users else None
    app = Starlette(
        routes=[*build_routes(services), Route("/echo", echo, methods=["POST"])],
        middleware=[Middleware(Guard, settings=settings, identity=identity)],
    )
    return TestClient(app, base_url="http://127.0.0.1:7860", follow_redirects=False)


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


def test_the_short_link_leads_to_the_run():
    response = client(FakeServices()).get(f"/r/{SLUG}")
    assert (response.status_code, response.headers["location"]) == (307, f"/run?id={SLUG}")


@pytest.mark.parametrize("slug", ["nope", "..%2f..", "a b", "zzz999zzz999"])
@pytest.mark.parametrize("tail", ["prompt", "0/retained", "result.json", "table.csv", "heads.csv"])
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
    routes = client(FakeServices(snapshot(request=request(answer="T3"))))
    result = json.loads(routes.get(f"/data/{SLUG}/result.json").text)
    assert result["schema"] == 1
    (evidence,) = result["readings"]["evidence"]
    assert (evidence["text"], evidence["spans"]) == ("T3", [[3, 4]])
    for name in ("table", "layers", "heads", "budgets"):
        response = routes.get(f"/data/{SLUG}/{name}.csv")
        assert response.status_code == 200
        assert response.headers["content-disposition"].endswith(f'{SLUG}-{name}.csv"')


@pytest.mark.parametrize("text", [*BAD_SLUGS[:-1], None, 7, ["abc123def456"]])
def test_only_slugs_are_slugs(text):
    assert not is_slug(text)


# --- guards ---------------------------------------------------------------------------------


def test_every_answer_carries_the_security_headers():
    headers = client(FakeServices()).get("/healthz").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_a_space_may_be_framed_by_its_host_page():
    settings = Settings.from_environ({"SPACE_ID": "a/b", "SPACE_HOST": "a-b.hf.space"})
    headers = client(FakeServices(), settings).get("/healthz").headers
    assert "frame-ancestors 'self' https://huggingface.co" in headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=http://127.0.0.1/x",
        "/gradio_api/file=HTTPS://evil.example/x",
        "/gradio_api/proxy=http://evil.example",
        "/gradio_api/upload",
    ],
)
def test_the_app_fetches_no_url_for_a_client(path):
    assert client(FakeServices()).get(path).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "["])
def test_a_loopback_app_answers_to_no_foreign_name(host):
    assert client(FakeServices()).get("/healthz", headers={"host": host}).status_code == 403


def test_a_loopback_app_takes_no_post_from_another_site():
    routes = client(FakeServices())
    assert routes.post("/echo", headers={"origin": "https://evil.example"}).status_code == 403
    assert routes.post("/echo", headers={"origin": "null"}).status_code == 403
    assert routes.post("/echo", headers={"origin": "http://127.0.0.1:7860"}).status_code == 200


def test_a_login_guards_everything_but_the_health_check():
    routes = client(FakeServices(), Settings.from_environ({"CKV_AUTH": "ann:pass:word"}))
    good = base64.b64encode(b"ann:pass:word").decode()
    assert routes.get("/healthz").status_code == 200
    assert routes.get(f"/data/{SLUG}/prompt").status_code == 401
    for header in ("Basic bad", "Basic !", f"Bearer {good}", "Basic "):
        response = routes.get(f"/data/{SLUG}/prompt", headers={"authorization": header})
        assert response.status_code == 401
    welcome = routes.get(f"/data/{SLUG}/prompt", headers={"authorization": f"Basic {good}"})
    assert welcome.status_code == 200


# --- settings -------------------------------------------------------------------------------


def test_the_app_listens_on_this_machine_only_unless_told_otherwise():
    assert SETTINGS.host == "127.0.0.1"
    assert SETTINGS.port == 7860
    assert Settings.from_environ({"GRADIO_SERVER_NAME": "0.0.0.0"}).host == "0.0.0.0"
    assert Settings.from_environ({"CKV_HOST": "::1", "GRADIO_SERVER_NAME": "x"}).host == "::1"
    assert Settings.from_environ({"SPACE_ID": "a/b"}).host == "0.0.0.0"


@pytest.mark.parametrize(
    "environ",
    [
        {"CKV_PORT": "x"},
        {"CKV_PORT": "0"},
        {"CKV_PORT": "70000"},
        {"CKV_DEVICE": "tpu"},
        {"CKV_AUTH": "ann"},
    ],
)
def test_a_wrong_setting_is_one_sentence(environ):
    with pytest.raises(ConfigError, match="must"):
        Settings.from_environ(environ)
