"""Forwarded headers count from named proxies alone, and nobody behind them sees any."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ui.server.guard import NamedProxies
from ui.settings import Settings

CLAIMED = {
    "x-forwarded-for": "6.6.6.6, 203.0.113.9",
    "x-forwarded-proto": "https",
    "x-forwarded-host": "claimed.example, lab.example",
    "x-gradio-server": "http://evil.example",
    "forwarded": "for=6.6.6.6",
}


async def seen(request: Request) -> JSONResponse:
    told = [name for name in request.headers if "forwarded" in name or "gradio" in name]
    return JSONResponse([request.client.host, str(request.url), told])


def asked(names: str, address: str) -> list[object]:
    app = NamedProxies(Starlette(routes=[Route("/", seen)]), names)
    client = TestClient(app, base_url="http://127.0.0.1:7860", client=(address, 5000))
    return client.get("/", headers=CLAIMED).json()


@pytest.mark.parametrize("names", ["", "10.0.0.2,192.0.2.0/24"])
def test_what_others_claim_is_not_believed(names):
    assert asked(names, "127.0.0.1") == ["127.0.0.1", "http://127.0.0.1:7860/", []]


@pytest.mark.parametrize("names", ["10.0.0.2", "10.0.0.0/8, 192.0.2.0/24"])
def test_what_a_named_proxy_tells_is(names):
    assert asked(names, "10.0.0.2") == ["203.0.113.9", "https://lab.example/", []]


def test_a_space_believes_its_platform():
    proxies = Settings.from_environ({"SPACE_ID": "a/b", "SPACE_HOST": "a-b.hf.space"}).proxies
    assert asked(proxies, "10.1.2.3")[1] == "https://lab.example/"


def test_one_line_tells_of_a_proxy_that_is_not_named(caplog):
    app = NamedProxies(Starlette(routes=[Route("/", seen)]), "")
    client = TestClient(app, client=("10.0.0.2", 5000))
    for _ in range(3):
        client.get("/", headers=CLAIMED)
    assert [record.args for record in caplog.records if record.name == "ui.server.guard"] == [
        ("10.0.0.2",)
    ]
