"""All that we use of Gradio's private parts, and why; to look at with each upgrade.

Gradio's queue has no owners, no room for each viewer and no end for a stream that nobody reads; its
handlers know no turns; its streams end while a page joins again, and change what a page has not
shown yet; its pages have one head; what it prints of a failed handler quotes what that was given.
"""

import asyncio
import inspect
import logging
import re
import sys
import time
import traceback
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

import gradio as gr
import gradio.blocks
import gradio.utils
from fastapi import HTTPException
from gradio.data_classes import PredictBodyInternal
from gradio.routes import App
from starlette.requests import Request

from ckv_core.base.checkpoints import checked_by
from ui.accounts.access import LOGIN_NEEDED, SCOPE_KEY, AccessError, Viewer, acting_as
from ui.accounts.turns import (
    BUSY,
    DEADLINE_S,
    EVENTS,
    LEFT,
    LINE_KEY,
    STRANGERS_EVENTS,
    TURN_KEY,
    BusyError,
    Line,
    OverError,
    Turn,
    Turns,
    ended_with,
    taking_turns,
)
from ui.server.rules import GUEST_HANDLERS

LOGGER = logging.getLogger(__name__)
ENDED_KEY = "ckv.stream_ended"  # of a request's scope: whether it joined after its stream ended


def quiet_tracebacks() -> None:
    """Log the type and place of a handler's failure; Gradio would print what it was given.

    Only an Error of its own can be kept from that (github.com/gradio-app/gradio/issues/10136).
    """
    traceback.print_exc = lambda *_, **__: LOGGER.error("A handler failed.", exc_info=True)


# --- Gradio's queue -----------------------------------------------------------------------------

NOT_YOURS = "There is no such session."
ACTIVE_EVENTS = 1024
MOST_UNREAD = 16  # messages of one session
UNREAD_LOOK_S = 0.1


_DIFF, _UPDATE_OF = gradio.utils.diff, gradio.blocks.postprocess_update_dict


class Streams:
    """Whose each waiting stream is, and how much of the queue each viewer has; of one event loop.

    A stream belongs to the login that opened it; its session's id alone opens nothing.
    """

    def __init__(self, blocks: gr.Blocks) -> None:
        """Join the queue of an app's pages for it."""
        self._queue = blocks._queue
        self._push = self._queue.push
        self._owners: WeakKeyDictionary[asyncio.Queue[Any], tuple[Viewer, Line]] = (
            WeakKeyDictionary()
        )
        self._queue.push = self.push  # type: ignore[method-assign]
        # Gradio's 40 would be used up by 40 tabs that follow a run. Handlers take turns anyhow.
        self._queue.max_thread_count = ACTIVE_EVENTS
        # After each event it would sum up the last 10,000 in pandas, for a page that is off.
        self._queue.ANAYLTICS_CACHE_FREQUENCY = sys.maxsize

    async def push(self, body: PredictBodyInternal, request: Request, username: str | None) -> Any:
        """Join the queue, if it has room for the viewer and the session is new or their own."""
        owner: tuple[Viewer, Line] = request.scope[SCOPE_KEY], request.scope[LINE_KEY]
        self._check_room(owner[1])
        waiting, session = self._queue.pending_messages_per_session, body.session_hash
        is_new = session is not None and session not in waiting
        if session not in waiting:
            self._forget_one(owner[1])
        if session is not None:
            if is_new:  # before anything is awaited: a page joins several times at once
                waiting[session] = asyncio.Queue()
                self._owners[waiting[session]] = owner
            if not self._is_owner(waiting[session], owner[0]):
                raise HTTPException(404, NOT_YOURS)
            self._owners[waiting[session]] = owner[0], self._owners[waiting[session]][1]
        request.scope[ENDED_KEY] = self._has_ended(session)
        done = await self._push(body=body, request=request, username=username)
        made = body.session_hash  # Gradio's own, for a call that named none
        if session is None and made is not None and made in waiting:
            self._owners[waiting[made]] = owner
        elif is_new and not done[0]:
            waiting.pop(session or "", None)
        return done

    def _has_ended(self, session: str | None) -> bool:
        """Whether the stream of a session ended with its last event, or was never opened.

        A page that hears of a new event before it hears of that end opens no other stream, and
        never sees what the event did: a click on Run would do nothing. So its joins.js waits.
        """
        return not self._queue.pending_event_ids_session.get(session or "")

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
        own = [name for name in idle if self._owners.get(waiting[name], (None, None))[1] is line]
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

    def _is_owner(self, messages: asyncio.Queue[Any], viewer: Viewer) -> bool:
        owner, _ = self._owners.get(messages, (None, None))
        if owner is None or owner.user != viewer.user:
            return False
        # Who came by share links sees what these links opened by then.
        return viewer.user is not None or owner.shared <= viewer.shared


# --- Gradio's handlers --------------------------------------------------------------------------


def handler_name(function: Any) -> str:
    """The qualified name of a handler of a page, such as RunPage.tail."""
    return str(getattr(getattr(function, "func", function), "__qualname__", ""))


def guard_handlers(blocks: gr.Blocks, turns: Turns) -> None:
    """Have all handlers act as their viewer and take turns, and guests call only those of theirs.

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
        inner = getattr(request, "request", request)  # bare as MCP hands it over, or wrapped
        scope = {} if inner is None else inner.scope
        line: Line | None = scope.get(LINE_KEY)
        session = str(getattr(request, "session_hash", None) or "")
        of = blocks.fns[block_fn] if isinstance(block_fn, int) else block_fn

        async def worked() -> Any:
            return await call(of, processed_input, iterator, requests, *more, **named)

        async def worked_in_turn(line: Line, turn: Turn) -> Any:
            async with line.place(turn):
                with checked_by(turn.check):
                    return await worked()

        try:
            viewed = acting_as(scope.get(SCOPE_KEY)) if scope else nullcontext()
            with viewed, taking_turns(scope, session):
                if iterator is not None:
                    await _until_read(blocks, session)
                elif scope:
                    _check_guest(of.fn, scope.get(SCOPE_KEY))
                inner = getattr(of.fn, "func", of.fn)
                is_async = inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
                if line is None or is_async:  # which takes turns for its parts
                    return await worked()
                turn = scope.get(TURN_KEY) or turns.begin(session)
                return await ended_with(turn, worked_in_turn(line, turn))
        except (AccessError, BusyError, OverError) as error:
            raise gr.Error(str(error), print_exception=False) from None

    async def clean_events(*, session_hash: str | None = None, event_id: str | None = None) -> None:
        if session_hash:
            turns.leave(session_hash)
        await clean(session_hash=session_hash, event_id=event_id)

    blocks.call_function = call_function  # type: ignore[method-assign]
    blocks._queue.clean_events = clean_events  # type: ignore[method-assign]


async def _until_read(blocks: gr.Blocks, session: str) -> None:
    """Wait until a stream's client has read most of it, so that none grows without a limit.

    Raises:
        OverError: it has read nothing for long.
    """
    until = time.monotonic() + DEADLINE_S
    unread = blocks._queue.pending_messages_per_session
    while session in unread and unread[session].qsize() > MOST_UNREAD:
        if time.monotonic() > until:
            raise OverError(LEFT)
        await asyncio.sleep(UNREAD_LOOK_S)


def send_updates_whole() -> None:
    """Have streams send an update, and a value after one, as it is, and `skip` change nothing.

    A page applies differences in place, also to a value that still waits to be shown. So `skip`
    would turn the value before it into a skip, and nobody would ever see that value. And `skip`
    would give each HTML component a property, for which the page asks it for its value first.
    """
    gradio.utils.diff = _difference
    gradio.blocks.postprocess_update_dict = _update_of


def _difference(old: Any, new: Any) -> list[Any]:
    is_whole = old != new and (_is_update(old) or _is_update(new))
    return [["replace", [], new]] if is_whole else list(_DIFF(old, new))  # type: ignore[no-untyped-call]


def _update_of(block: Any, update_dict: dict[str, Any], postprocess: bool = True) -> Any:
    named = {name: value for name, value in update_dict.items() if name != "__type__"}
    return _UPDATE_OF(block, named, postprocess)


def _is_update(value: object) -> bool:
    return isinstance(value, dict) and value.get("__type__") == "update"


def _check_guest(function: Any, viewer: object) -> None:
    is_known = isinstance(viewer, Viewer) and (viewer.is_trusted or viewer.user is not None)
    if not is_known and handler_name(function) not in GUEST_HANDLERS:
        raise AccessError(LOGIN_NEEDED)


# --- Gradio's pages and sessions ----------------------------------------------------------------

# It keeps what each has last sent and got, at least 0.4 MiB. A page whose session was dropped
# loses the choices that its menus have got since.
SESSIONS = 100
_PREVIEWS = re.compile(r'[ \t]*<meta\s+(?:property="og:|name="twitter:)[^>]*>\n?')


def with_head(body: bytes, lines: str) -> bytes:
    """A page of Gradio with these lines at the end of its head in place of Gradio's previews."""
    page = _PREVIEWS.sub("", body.decode())
    # Gradio's script would give every page the title of the app.
    page = page.replace('control_page_title="true"', 'control_page_title="false"', 1)
    return page.replace("</head>", f"{lines}</head>", 1).encode()


def lighten_sessions(blocks: gr.Blocks, app: App) -> None:
    """Keep few sessions, and describe in each only what it sends or gets.

    Gradio would describe all components to each new session, for links that are off: 60 ms and
    more of the event loop.
    """
    blocks.state_session_capacity = SESSIONS
    described = SimpleNamespace(default_config=blocks.default_config, blocks={})
    app.state_holder.blocks = cast("gr.Blocks", described)


def end_events(blocks: gr.Blocks, app: App) -> None:
    """Take no more events, and end the answers that wait for some."""
    blocks._queue.close()  # type: ignore[no-untyped-call]
    blocks.is_running = False
    app.stop_event.set()
