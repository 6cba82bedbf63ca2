"""Clients that send or read nothing are let go, and keep nobody else out. Real sockets."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from ckv_core.errors import CkvError
from tests.processes import free_port
from tests.ui.server.http_child import FILES
from ui.accounts.access import EVERYBODY, SCOPE_KEY, Viewer
from ui.server import private
from ui.server.gates import BOUNDS, BUSY, HELD, SMALL_BYTES, Bodies
from ui.server.http_server import HttpServer

SHORT_S = 0.3
PATIENCE_S = 30.0
BIG = 64 * 2**20


class Seen:
    """What the app behind the server went through."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def read(self, request: Request) -> PlainTextResponse:
        try:
            return PlainTextResponse(str(len(await request.body())))
        except ClientDisconnect:
            self.ended.append("disconnect")
            return PlainTextResponse("nobody reads this")

    async def big(self, _: Request) -> Response:
        return Response(b"x" * BIG)

    async def slow(self, _: Request) -> PlainTextResponse:
        await asyncio.sleep(2 * SHORT_S)
        return PlainTextResponse("done")


@contextmanager
def serving(seen: Seen | None = None) -> Iterator[int]:
    seen = seen or Seen()
    routes = [
        Route("/", seen.read, methods=["GET", "POST"]),
        Route("/big", seen.big),
        Route("/slow", seen.slow),
    ]
    port = free_port()
    with closing(HttpServer("127.0.0.1", port)) as server:
        server.start(Starlette(routes=routes))
        yield port


def connected(port: int, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    client.sendall(sent)
    return client


def ended(client: socket.socket) -> bool:
    """Whether the server has closed; waits no longer than the socket's own time."""
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def rest_of(client: socket.socket) -> bytes:
    """What still comes until the server closes."""
    with client:
        return b"".join(iter(lambda: client.recv(2**16), b""))


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", b""),
        (b"GET / HT", b""),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b""),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT", b"HTTP/1.1 200"),
    ],
    ids=["nothing", "first line", "headers", "second request"],
)
def test_headers_that_do_not_come_are_not_waited_for(monkeypatch, sent, answered):
    monkeypatch.setattr(private, "HEAD_S", SHORT_S)
    with serving() as port:
        assert rest_of(connected(port, sent)).partition(b" OK")[0] == answered


def test_headers_that_drip_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(private, "HEAD_S", SHORT_S)
    with serving() as port, connected(port, b"GET / HTTP/1.1\r\n") as client:
        client.settimeout(SHORT_S / 10)
        until = time.monotonic() + PATIENCE_S
        while not ended(client):
            assert time.monotonic() < until
            with suppress(ConnectionError):
                client.sendall(b"X: y\r\n")


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(private, "BODY_S", SHORT_S)
    seen = Seen()
    with serving(seen) as port:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
        assert rest_of(connected(port, head + b"abc")) == b""
    assert seen.ended == ["disconnect"]


def test_a_body_that_goes_on_coming_is_taken(monkeypatch):
    monkeypatch.setattr(private, "BODY_S", SHORT_S)
    monkeypatch.setattr(private, "BODY_RATE", 100)

    def chunks() -> Iterator[bytes]:
        for _ in range(10):
            yield b"x" * 100
            time.sleep(SHORT_S / 4)

    with serving() as port:
        assert httpx.post(f"http://127.0.0.1:{port}/", content=chunks()).text == "1000"


def test_an_answer_that_takes_long_is_waited_for(monkeypatch):
    monkeypatch.setattr(private, "HEAD_S", SHORT_S)
    monkeypatch.setattr(private, "BODY_S", SHORT_S)
    with serving() as port:
        assert httpx.get(f"http://127.0.0.1:{port}/slow", timeout=PATIENCE_S).text == "done"


@pytest.mark.parametrize("reads", [False, True])
def test_an_answer_that_nobody_takes_ends_and_a_slow_reader_gets_all(monkeypatch, reads):
    monkeypatch.setattr(private, "STALL_S", SHORT_S)
    monkeypatch.setattr(private, "HEAD_S", SHORT_S)
    with serving() as port:
        client = connected(port, b"GET /big HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        received = 0
        time.sleep(0 if reads else 3 * SHORT_S)
        with client, suppress(ConnectionResetError):
            while part := client.recv(2**20):
                received += len(part)
                time.sleep(SHORT_S / 20)
    assert (received > BIG) is reads


def test_a_taken_port_is_one_sentence():
    port = free_port()
    with closing(HttpServer("127.0.0.1", port)) as server:
        server.start(Starlette())
        with pytest.raises(CkvError, match="set CKV_PORT to a free port"):
            HttpServer("127.0.0.1", port)


@pytest.mark.slow
def test_half_open_connections_leave_room_for_others():
    """More of them than the process has files; the log stays short."""
    port = free_port()
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.ui.server.http_child", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with ExitStack() as stack:
            assert child.stdout.readline() == "ready\n"
            for i in range(FILES + 50):
                stack.enter_context(connected(port, b"GET / HTTP/1.1\r\nHo" if i % 2 else b""))
            for _ in range(20):
                assert httpx.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S).text == "here"
        _, log = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
        child.wait()
    assert len(log.splitlines()) <= 10, log[:2000]


# --- what a request carries is bounded by size and, if it is JSON, by what it would become ---

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
