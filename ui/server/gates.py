"""Checks of a request behind the guard: its size, whose session it names, and their turn."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import anyio.to_thread
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ckv_core.base.checkpoints import checked_by
from ckv_core.base.json_text import JsonBounds
from ckv_core.errors import ConfigError
from ui.accounts.access import EVERYBODY, SCOPE_KEY
from ui.accounts.turns import LINE_KEY, TURN_KEY, BusyError, Line, OverError, Turn
from ui.server.private import NOT_YOURS, Streams
from ui.server.route_answers import NO_STORE
from ui.server.rules import rule_of

SMALL_BYTES = 2**20
STRANGERS_BYTES = 2**16  # logins, and what the guest of a share link sends
BOUNDS = JsonBounds(containers=2**16, values=2**20)
COUNTED_BYTES = 2**16
# What bodies over that may take together, in bodies of the largest size.
HELD = 4
BUSY = "Other large requests are being read; try again in a moment."


class Bodies:
    """ASGI middleware: an app gets a body that is whole, not too large, and not too much JSON."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        """Stand before an app; a request with a context or a file has `most` bytes."""
        self._app = app
        self._most = most
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        kind = rule_of(str(scope["path"])).body
        viewer = scope.get(SCOPE_KEY, EVERYBODY)
        is_known = viewer.is_trusted or viewer.user is not None
        most = self._most
        if not is_known or kind == "small":
            most = min(SMALL_BYTES if is_known else STRANGERS_BYTES, self._most)
        with self._room() as hold:
            try:
                body = await _read(receive, most, hold)
                if kind != "file":
                    await _check(body)
            except _RefusedError as refused:
                await refused.answer(scope, receive, send)
                return
            except ClientDisconnect:
                return
            receive = received_again(body, receive)
            del body  # the app's request is the only one that holds it
            await self._app(scope, receive, send)

    @contextmanager
    def _room(self) -> Iterator[Callable[[int], None]]:
        """A function that takes room for one body of so many bytes; its room is given back."""
        own = 0

        def hold(size: int) -> None:
            nonlocal own
            more = max(0, size - own)
            if more and self._held + more > HELD * self._most:
                raise _RefusedError(503, BUSY)
            self._held += more
            own += more

        try:
            yield hold
        finally:
            self._held -= own


def received_again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read already, then what comes after it."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again


class _RefusedError(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.answer = JSONResponse({"error": sentence}, status, {"Cache-Control": "no-store"})


async def _read(receive: Receive, most: int, hold: Callable[[int], None]) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            what = "shorten the context" if most > SMALL_BYTES else "send less at a time"
            limit = f"{most // 2**20} MiB" if most >= SMALL_BYTES else "64 KiB"
            raise _RefusedError(413, f"The request is over {limit}; {what}.")
        if size > COUNTED_BYTES:
            hold(size)
        more = message.get("more_body", False)
    return b"".join(parts)


async def _check(body: bytes) -> None:
    """Refuse what would be too much once it is parsed, which happens on the event loop."""
    if b"\0" in body:
        # UTF-16 would hide its quotes from us, and not from the parser.
        raise _RefusedError(413, "The request is not in UTF-8.")
    try:
        if len(body) <= COUNTED_BYTES:
            BOUNDS.check(body)
        else:
            await anyio.to_thread.run_sync(BOUNDS.check, body)
    except ConfigError as error:
        raise _RefusedError(413, str(error)) from None


PREFIX = "/gradio_api/"
# Paths whose segments name a session or an event, and those whose small body does.
IN_PATH = ("heartbeat", "stream", "call")
IN_BODY = ("cancel", "reset")
BODY_BYTES = 4096  # what is longer is cut, so no JSON


class TurnGate:
    """ASGI middleware: a request waits for its viewer's turn, and ends when its client leaves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 503 where the viewer has too many requests already."""
        line: Line | None = scope.get(LINE_KEY)
        rule = rule_of(str(scope.get("path", "")))
        if line is None or rule.turn == "none":
            await self._app(scope, receive, send)
            return
        turn = scope[TURN_KEY] = line.turns.begin()
        client = _Client(receive, turn)
        try:
            async with AsyncExitStack() as held:

                async def send_and_let_go(message: Message) -> None:
                    # The answer is made: its client may take time to read it.
                    await held.aclose()
                    await send(message)

                if rule.turn == "waits":
                    await held.enter_async_context(line.place(turn))
                with checked_by(turn.check):
                    await self._app(scope, client.receive, send_and_let_go)
        except (BusyError, OverError) as error:
            await busy_answer(Request(scope), error)(scope, receive, send)
        finally:
            client.let_go()


def busy_answer(_: Request, error: Exception) -> Response:
    """Answers 503 to work that found no place in time, or was ended."""
    return PlainTextResponse(f"{error}\n", 503, {**NO_STORE, "Retry-After": "5"})


class _Client:
    """Hears that the client of a request leaves while it is answered."""

    def __init__(self, receive: Receive, turn: Turn) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen(receive, turn))

    async def receive(self) -> Message:
        return await self._messages.get()

    def let_go(self) -> None:
        self._listening.cancel()

    async def _listen(self, receive: Receive, turn: Turn) -> None:
        while True:
            message = await receive()
            self._messages.put_nowait(message)
            if message["type"] == "http.disconnect":
                turn.leave()
                return


class OwnStreams:
    """ASGI middleware: what another login opened is not found."""

    def __init__(self, app: ASGIApp, *, streams: Streams) -> None:
        """Stand before the routes of a Gradio app."""
        self._app = app
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what names no session, or the viewer's own."""
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not path.startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        kind, *names = path.removeprefix(PREFIX).strip("/").split("/")
        sessions: list[object] = list(names) if kind in IN_PATH else []
        if path == f"{PREFIX}queue/data":
            sessions = [QueryParams(scope["query_string"]).get("session_hash")]
        if kind in IN_BODY and scope["method"] == "POST":
            body = (await receive()).get("body", b"")[:BODY_BYTES]  # whole, as `Bodies` read it
            sessions = _named_in(body)
            receive = received_again(body, receive)
        if all(self._streams.may(scope[SCOPE_KEY], name) for name in sessions):
            await self._app(scope, receive, send)
            return
        await PlainTextResponse(NOT_YOURS, 404)(scope, receive, send)


def _named_in(body: bytes) -> list[object]:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return []  # Gradio refuses it
    if not isinstance(given, dict):
        return []
    return [given.get(name) for name in ("session_hash", "event_id")]
