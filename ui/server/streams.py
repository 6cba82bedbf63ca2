"""A stream of Gradio's belongs to the login that opened it; its session id alone opens nothing.

Nor does one viewer fill Gradio's queue, or push the sessions of others out of it.
"""

import asyncio
import json
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import HTTPException
from gradio.data_classes import PredictBodyInternal
from gradio.queueing import Queue
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ui.accounts.access import SCOPE_KEY, Viewer
from ui.accounts.turns import BUSY, EVENTS, LINE_KEY, STRANGERS_EVENTS, Line
from ui.server.bodies import received_again

PREFIX = "/gradio_api/"
# Paths whose segments name a session or an event, and those whose small body does.
IN_PATH = ("heartbeat", "stream", "call")
IN_BODY = ("cancel", "reset")
BODY_BYTES = 4096
NOT_YOURS = "There is no such session."


class Streams:
    """Whose each waiting stream is; for one event loop."""

    def __init__(self, queue: Queue) -> None:
        """Stand before the queue of an app's pages."""
        self._queue = queue
        self._push = queue.push
        self._owners: WeakKeyDictionary[asyncio.Queue[Any], Viewer] = WeakKeyDictionary()
        self._lines: WeakKeyDictionary[asyncio.Queue[Any], Line] = WeakKeyDictionary()
        queue.push = self.push  # type: ignore[method-assign]

    async def push(self, body: PredictBodyInternal, request: Request, username: str | None) -> Any:
        """Join the queue, if it has room for the viewer and the session is new or their own."""
        viewer: Viewer = request.scope[SCOPE_KEY]
        line: Line = request.scope[LINE_KEY]
        self._check_room(line)
        waiting, session = self._queue.pending_messages_per_session, body.session_hash
        is_new = session is not None and session not in waiting
        if session not in waiting:
            self._forget_one(line)
        if session is not None:
            if is_new:  # before anything is awaited: a page joins several times at once
                waiting[session] = asyncio.Queue()
                self._owners[waiting[session]] = viewer
                self._lines[waiting[session]] = line
            self._claim(waiting[session], viewer)
        done = await self._push(body=body, request=request, username=username)
        made = body.session_hash  # Gradio's own, for a call that named none
        if session is None and made is not None and made in waiting:
            self._owners[waiting[made]] = viewer
            self._lines[waiting[made]] = line
        elif is_new and not done[0]:
            waiting.pop(session or "", None)
        return done

    def may(self, viewer: Viewer, name: object) -> bool:
        """Whether a session or event of this name is the viewer's, or nobody's."""
        session = self._session_of(name)
        if session is None:
            return True
        messages = self._queue.pending_messages_per_session.get(session)
        return messages is not None and self._is_owner(messages, viewer)

    def _check_room(self, line: Line) -> None:
        """HTTPException where the viewer, or all strangers together, have too many events."""
        events = self._queue.event_ids_to_events.values()
        lines = [event.request.scope[LINE_KEY] for event in events]
        most = STRANGERS_EVENTS if line.is_stranger else EVENTS
        of_strangers = sum(each.is_stranger for each in lines) if line.is_stranger else 0
        if lines.count(line) >= most or of_strangers >= EVENTS:
            raise HTTPException(503, BUSY)

    def _forget_one(self, line: Line) -> None:
        """Make room for a session: Gradio would drop the oldest, also one that is followed."""
        waiting = self._queue.pending_messages_per_session
        busy = {event.session_hash for event in self._queue.event_ids_to_events.values()}
        idle = [name for name in waiting if name not in busy]
        own = [name for name in idle if self._lines.get(waiting[name]) is line]
        if len(own) >= (STRANGERS_EVENTS if line.is_stranger else EVENTS):
            del waiting[own[0]]
        elif len(waiting) >= waiting.max_size:
            del waiting[idle[0]]

    def _session_of(self, name: object) -> str | None:
        if not isinstance(name, str):
            return None
        if name in self._queue.pending_messages_per_session:
            return name
        if (event := self._queue.event_ids_to_events.get(name)) is not None:
            return event.session_hash
        named = self._queue.pending_event_ids_session.items()
        return next((session for session, events in named if name in events), None)

    def _is_owner(self, messages: "asyncio.Queue[Any]", viewer: Viewer) -> bool:
        owner = self._owners.get(messages)
        if owner is None or owner.user != viewer.user:
            return False
        # Who came by share links sees what these links opened by then.
        return viewer.user is not None or owner.shared <= viewer.shared

    def _claim(self, messages: "asyncio.Queue[Any]", viewer: Viewer) -> None:
        if not self._is_owner(messages, viewer):
            raise HTTPException(404, NOT_YOURS)
        self._owners[messages] = viewer


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
        asked: list[object] = list(names) if kind in IN_PATH else []
        if path == f"{PREFIX}queue/data":
            asked = [QueryParams(scope["query_string"]).get("session_hash")]
        if kind in IN_BODY:
            body = await _small_body(receive)
            asked = _named_in(body)
            receive = received_again(body, receive)
        if all(self._streams.may(scope[SCOPE_KEY], name) for name in asked):
            await self._app(scope, receive, send)
            return
        await PlainTextResponse(NOT_YOURS, 404)(scope, receive, send)


async def _small_body(receive: Receive) -> bytes:
    """The body as far as one that names a session goes; what is longer is cut, so no JSON."""
    body = b""
    more = True
    while more and len(body) <= BODY_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
    return body[:BODY_BYTES]


def _named_in(body: bytes) -> list[object]:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return []  # Gradio refuses it
    if not isinstance(given, dict):
        return []
    return [given.get(name) for name in ("session_hash", "event_id")]
