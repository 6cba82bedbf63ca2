"""The endpoints as MCP tools: which there are, who may call them, what is missing without them."""

import asyncio
import base64
import json
from dataclasses import replace
from functools import partial

import httpx
import pytest
from gradio.mcp import GradioMCPServer
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from ckv_core.errors import ConfigError
from tests.factories.app import ENDLESS, end_of, generating, script, wait_until
from tests.ui.served_app import by
from ui.api.endpoints import STOPPING
from ui.build import build_site
from ui.settings import Settings

NAMES = ["compare", "sweep", "get_run", "cancel", "list_runs", "export_run"]
EMPTY = "The context is empty; paste or upload a text first."


@pytest.fixture(scope="module")
def slug(app) -> str:
    """A finished run of ann's."""
    with by("ann"):
        return end_of(app.services, app.services.start_run(script("steps 2"))).slug


def by_mcp(app, user, work):
    """Do async work with an MCP session of a user; nobody's without a name."""

    async def run():
        headers = {}
        if user:
            login = base64.b64encode(f"{user}:{user}-secret".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
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


def test_mcp_has_the_six_tools_with_descriptions(app):
    tools = by_mcp(app, "ann", lambda session: session.list_tools()).tools
    assert [tool.name for tool in tools] == NAMES
    for tool in tools:
        assert tool.description
        arguments = tool.inputSchema["properties"]
        assert all(argument["description"] for argument in arguments.values()), tool.name


def test_mcp_acts_for_who_is_logged_in(app, slug):
    call = partial(call_tool, app)
    failed, text = call("ann", "list_runs", {"limit": 100})
    assert not failed
    assert slug in [row["slug"] for row in json.loads(text)["runs"]]
    failed, text = call("bob", "list_runs", {"text": "one"})
    assert json.loads(text) == {"total": 0, "runs": []}
    failed, text = call("bob", "get_run", {"slug": slug})
    assert failed
    assert text.startswith("There is no run")
    assert call("ann", "compare", {"context": ""}) == (True, EMPTY)


def test_mcp_cancels_a_run_of_who_is_logged_in(app):
    with by("ann"):
        slug = app.services.start_run(script(ENDLESS))
        wait_until(app.services, slug, generating)
    failed, text = call_tool(app, "bob", "cancel", {"slug": slug})
    assert (failed, text[:15]) == (True, "There is no run")
    failed, text = call_tool(app, "ann", "cancel", {"slug": slug})
    assert (failed, json.loads(text)["told"]) == (False, STOPPING)
    with by("ann"):
        end = end_of(app.services, slug)
    assert (end.state, end.result.variants[0].text[:3]) == ("cancelled", "w0 ")


def test_mcp_refuses_strangers(app):
    with pytest.raises(BaseExceptionGroup) as caught:
        by_mcp(app, "", lambda session: session.list_tools())
    assert "401" in repr(caught.value.exceptions)


def test_mcp_is_off_unless_wanted(app, open_app):
    assert app.blocks.mcp_server is True
    assert open_app.blocks.mcp_server is False
    assert not Settings.from_environ({}).mcp
    assert Settings.from_environ({"CKV_MCP": "1"}).mcp


def test_a_missing_mcp_package_is_one_sentence(app, monkeypatch):
    def missing(*_: object) -> None:
        raise ImportError("no mcp")

    monkeypatch.setattr(GradioMCPServer, "__init__", missing)
    with pytest.raises(ConfigError, match=r"requirements-mcp\.txt"):
        build_site(app.services, replace(Settings.from_environ({}), mcp=True))
