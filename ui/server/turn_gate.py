"""Every request, and every handler of a page, takes its viewer's turn, except what is light."""

import asyncio
import inspect
import time
from contextlib import AsyncExitStack
from typing import Any

import gradio as gr
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ckv_core.runtime.checkpoints import checked_by
from ui.accounts.access import LOGIN_NEEDED, SCOPE_KEY, AccessError, Viewer, scope_of
from ui.accounts.turns import (
    DEADLINE_S,
    LEFT,
    LINE_KEY,
    TURN_KEY,
    BusyError,
    Line,
    OverError,
    Turn,
    Turns,
    ended_with,
)
from ui.server.route_answers import NO_STORE

# What answers at once, from memory or a file, or streams while its handlers take turns.
LIGHT_PATHS = frozenset({"/healthz", "/login", "/theme.css", "/favicon.ico", "/manifest.json"})
LIGHT_PREFIXES = (
    *("/assets/", "/static/", "/svelte/", "/scripts/"),
    *("/gradio_api/queue/", "/gradio_api/heartbeat/", "/gradio_api/call", "/gradio_api/mcp"),
    *("/gradio_api/cancel", "/gradio_api/reset", "/gradio_api/stream"),
    *("/gradio_api/startup-events", "/gradio_api/app_id", "/gradio_api/theme.css"),
)
# Their handlers take turns themselves.
TAKING_TURNS = ("/gradio_api/run/", "/api/")
MOST_UNREAD = 16  # messages of one session
LOOK_S = 0.1
# What the Run page does for the guest of a share link; every other handler needs a login.
GUEST_HANDLERS = frozenset({"RunPage.open", "RunPage.tail", "ResultsBlock.wire.<locals>.matched"})


class TurnGate:
    """ASGI middleware: a request waits for its viewer's turn, and ends when its client leaves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 503 where the viewer has too many requests already."""
        path = str(scope.get("path", ""))
        line: Line | None = scope.get(LINE_KEY)
        if line is None or path in LIGHT_PATHS or path.startswith(LIGHT_PREFIXES):
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

                if not path.startswith(TAKING_TURNS):
                    await held.enter_async_context(line.place(turn))
                with checked_by(turn.check):
                    await self._app(scope, client.receive, send_and_let_go)
        except (BusyError, OverError) as error:
            again = {**NO_STORE, "Retry-After": "5"}
            await PlainTextResponse(f"{error}\n", 503, again)(scope, receive, send)
        finally:
            client.let_go()


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


def handler_name(function: Any) -> str:
    """The qualified name of a handler of a page, such as RunPage.tail."""
    return str(getattr(getattr(function, "func", function), "__qualname__", ""))


def guard_handlers(blocks: gr.Blocks, turns: Turns) -> None:
    """Have the handlers of all pages take turns, and guests call only those of their page.

    Whatever way a handler is called, it comes by `call_function`; that a page was closed, by
    `clean_events`.
    """
    call, clean = blocks.call_function, blocks._queue.clean_events

    async def call_function(
        block_fn: Any,
        processed_input: list[Any],
        iterator: Any = None,
        requests: Any = None,
        *more: Any,
        **named: Any,
    ) -> Any:
        request = requests[0] if isinstance(requests, list) else requests
        scope = scope_of(request)
        of = blocks.fns[block_fn] if isinstance(block_fn, int) else block_fn

        async def called() -> Any:
            return await call(of, processed_input, iterator, requests, *more, **named)

        async def called_in_turn(line: Line, turn: Turn) -> Any:
            async with line.place(turn):
                with checked_by(turn.check):
                    return await called()

        try:
            if iterator is not None:
                await _until_read(blocks, getattr(request, "session_hash", None))
                return await called()
            _check_guest(of.fn, scope)
            line: Line | None = scope.get(LINE_KEY)
            if line is None or _is_async(of.fn):  # which takes turns for its parts
                return await called()
            session = str(getattr(request, "session_hash", None) or "")
            turn = scope.get(TURN_KEY) or turns.begin(session)
            return await ended_with(turn, called_in_turn(line, turn))
        except (AccessError, BusyError, OverError) as error:
            raise gr.Error(str(error), print_exception=False) from None

    async def clean_events(*, session_hash: str | None = None, event_id: str | None = None) -> None:
        if session_hash:
            turns.leave(session_hash)
        await clean(session_hash=session_hash, event_id=event_id)

    blocks.call_function = call_function  # type: ignore[method-assign]
    blocks._queue.clean_events = clean_events  # type: ignore[method-assign]


async def _until_read(blocks: gr.Blocks, session: str | None) -> None:
    """Wait until a stream's client has read most of it, so that none grows without a limit.

    Raises:
        OverError: it has read nothing for long.
    """
    until = time.monotonic() + DEADLINE_S
    unread = blocks._queue.pending_messages_per_session
    while session and session in unread and unread[session].qsize() > MOST_UNREAD:
        if time.monotonic() > until:
            raise OverError(LEFT)
        await asyncio.sleep(LOOK_S)


def _check_guest(function: Any, scope: Any) -> None:
    viewer = scope.get(SCOPE_KEY)
    is_known = isinstance(viewer, Viewer) and (viewer.is_trusted or viewer.user is not None)
    if scope and not is_known and handler_name(function) not in GUEST_HANDLERS:
        raise AccessError(LOGIN_NEEDED)


def _is_async(function: Any) -> bool:
    inner = getattr(function, "func", function)
    return inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
