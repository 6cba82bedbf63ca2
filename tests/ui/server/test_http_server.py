"""What a request carries is bounded by size and, if it is JSON, by what it would become."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ckv_core.errors import CkvError
from tests.processes import free_port
from ui.accounts.access import EVERYBODY, SCOPE_KEY, Viewer
from ui.server.gates import BOUNDS, BUSY, HELD, SMALL_BYTES, Bodies
from ui.server.http_server import HttpServer


def test_no_part_of_an_answer_waits_for_the_browser_to_confirm_the_one_before():
    server = HttpServer("127.0.0.1", free_port())
    with closing(server), socket.create_connection(server._socket.getsockname()):
        accepted, _ = server._socket.accept()
        with closing(accepted):
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_taken_port_is_one_sentence():
    port = free_port()
    with closing(HttpServer("127.0.0.1", port)) as server:
        server.start(Starlette())
        with pytest.raises(CkvError, match="set CKV_PORT to a free port"):
            HttpServer("127.0.0.1", port)


MIB = 2**20
MOST = 4 * MIB
CONTEXT = "/gradio_api/queue/join"


class App:
    """An app that notes what reaches it."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        routes = [Route("/{path:path}", self.read, methods=["POST", "GET"])]
        self.bodies = Bodies(Starlette(routes=routes), MOST)
        self.client = TestClient(self.bodies)

    async def read(self, request: Request) -> PlainTextResponse:
        self.lengths.append(len(await request.body()))
        return PlainTextResponse(str(self.lengths[-1]))

    def post(self, path: str, content: bytes | Iterator[bytes]) -> tuple[int, str]:
        answer = self.client.post(path, content=content)
        return answer.status_code, answer.text


@pytest.fixture
def app() -> App:
    return App()


def chunks(size: int) -> Iterator[bytes]:
    for _ in range(size // 2**16):
        yield b" " * 2**16
    yield b" " * (size % 2**16)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "most", "sentence"),
    [
        (CONTEXT, MOST, "over 4 MiB; shorten the context."),
        ("/gradio_api/run/predict", MOST, "over 4 MiB"),
        ("/gradio_api/mcp/", MOST, "over 4 MiB"),
        ("/api/runs", MOST, "over 4 MiB"),
        ("/runs/import", MOST, "over 4 MiB"),
        ("/api/runs/abc/cancel", SMALL_BYTES, "over 1 MiB; send less at a time."),
        ("/gradio_api/cancel", SMALL_BYTES, "over 1 MiB"),
        ("/login", SMALL_BYTES, "over 1 MiB"),
    ],
)
def test_one_byte_over_the_size_is_refused(app, path, most, sentence, streamed):
    def body(size: int) -> bytes | Iterator[bytes]:
        return chunks(size) if streamed else b" " * size

    assert app.post(path, body(most)) == (200, str(most))
    status, text = app.post(path, body(most + 1))
    assert status == 413
    assert sentence in json.loads(text)["error"]
    assert app.lengths == [most], "the app got some of it"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"[" * 33, "nested deeper than 32"),
        (b'{"data": ' * 40, "nested deeper"),
        (b"[" + b"{}," * BOUNDS.containers, "objects and arrays"),
        (b"[" + b"1," * BOUNDS.values, "values"),
        (b'["' + b'","' * BOUNDS.values, "values"),
        (b'[{"a": "\\"' + b"{}" * 100 + b'"}, ' + b"[]," * BOUNDS.containers, "objects and"),
        (("[" * 33).encode("utf-16"), "UTF-8"),
    ],
    ids=["arrays", "objects", "many objects", "numbers", "strings", "after a text", "utf-16"],
)
def test_json_that_would_become_too_much_is_refused(app, body, sentence):
    status, text = app.post(CONTEXT, body)
    assert status == 413
    assert sentence in json.loads(text)["error"]
    assert app.lengths == []


@pytest.mark.parametrize("text", ["{[,\n" * 200_000, '\\"{' * 100_000, "漢字,[" * 100_000])
def test_a_text_may_hold_what_it_likes(app, text):
    body = json.dumps({"data": [text, text], "fn_index": 1}).encode()
    assert app.post(CONTEXT, body) == (200, str(len(body)))


def test_a_file_is_not_taken_for_json(app):
    assert app.post("/caches/import", b"[\0" * 100)[0] == 200


def test_who_only_reads_a_shared_run_sends_little(app):
    reader = Viewer(shared=frozenset({"abc123def456"}))
    for viewer, status in ((reader, 413), (Viewer(user="ann"), 200), (EVERYBODY, 200)):
        assert asyncio.run(sent(app.bodies, [b" " * (SMALL_BYTES + 1)], viewer))[0] == status


def test_what_large_bodies_hold_together_is_bounded_and_given_back(app):
    async def crowd() -> None:
        go_on = asyncio.Event()
        begun = [asyncio.create_task(sent(app.bodies, [b" " * MOST, go_on])) for _ in range(HELD)]
        await asyncio.sleep(0)
        status, body = await sent(app.bodies, [b" " * MOST])
        assert (status, json.loads(body)["error"]) == (503, BUSY)
        assert await sent(app.bodies, [b" "]) == (200, b"1"), "small ones are taken"
        go_on.set()
        assert await asyncio.gather(*begun) == [(200, b"%d" % MOST)] * HELD
        assert await sent(app.bodies, [b" " * MOST]) == (200, b"%d" % MOST)

    asyncio.run(crowd())


def test_who_goes_away_is_not_answered_and_holds_nothing(app):
    async def leave() -> None:
        for _ in range(HELD + 1):
            assert await sent(app.bodies, [b" " * MOST, None]) == (0, b"")
        assert (await sent(app.bodies, [b" " * MOST]))[0] == 200

    asyncio.run(leave())


async def sent(
    app: Bodies, parts: list[bytes | asyncio.Event | None], viewer: Viewer = EVERYBODY
) -> tuple[int, bytes]:
    """Status and body of the answer; an event is waited for, None means that the client left."""
    answer: list[dict] = []

    async def receive() -> dict:
        part = parts.pop(0) if parts else b""
        if part is None:
            return {"type": "http.disconnect"}
        if isinstance(part, asyncio.Event):
            await part.wait()
            part = b""
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: dict) -> None:
        answer.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": CONTEXT,
        "headers": [],
        "query_string": b"",
        SCOPE_KEY: viewer,
    }
    await app(scope, receive, send)
    body = b"".join(each.get("body", b"") for each in answer)
    return (answer[0]["status"] if answer else 0), body
