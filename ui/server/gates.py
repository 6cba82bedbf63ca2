"""What a request passes behind the guard: whether its session is its viewer's, and their turn."""

import asyncio
import json
from contextlib import AsyncExitStack

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ckv_core.base.checkpoints import checked_by
from ui.accounts.access import SCOPE_KEY
from ui.accounts.turns import LINE_KEY, TURN_KEY, BusyError, Line, OverError, Turn
from ui.server.bodies import received_again
from ui.server.private import NOT_YOURS, Streams
from ui.server.route_answers import NO_STORE
from ui.server.rules import rule_of

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
