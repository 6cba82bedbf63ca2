"""Turns: what computes or waits for a viewer takes one of a few places, for a bounded time.

So one viewer, whatever they send, leaves the other places to the others. A thread cannot be
killed: work whose client left, or whose time is over, ends at its next checkpoint.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio
import anyio.to_thread

from ckv_core.base.checkpoints import checked_by
from ckv_core.errors import CkvError
from ui.accounts.access import Viewer

P = ParamSpec("P")
T = TypeVar("T")
LINE_KEY = "ckv.line"  # of a request's scope: the viewer's `Line`, and ...
TURN_KEY = "ckv.turn"  # ... the request's own `Turn`, where it has one
PLACES = 32  # threads, of all viewers
OWN = 4  # of one user; of one address where the app has no logins
STRANGERS = 2  # of one address without a login
ALL_STRANGERS = 6  # of all of them, guests of share links too
MOST_WAITING = 64  # calls of one viewer
EVENTS = 256  # in Gradio's queue, at work or waiting: of one user, and of all strangers
STRANGERS_EVENTS = 32  # of one address without a login
WAIT_S = 30.0  # for a place
DEADLINE_S = 120.0  # from the call to its end
BUSY = "Your other requests are still being answered; try again in a moment."
LEFT = "The page that requested this was closed."
TOO_LONG = f"This took over {DEADLINE_S:.0f} s and was stopped; ask for less at a time."


class BusyError(CkvError):
    """A viewer has too many calls waiting, or waited too long for a place."""


class OverError(CkvError):
    """Work was ended: its client left, or its time is over."""


class Turn:
    """One call, from when it came."""

    def __init__(self) -> None:
        self._until = time.monotonic() + DEADLINE_S
        self._has_left = False

    def leave(self) -> None:
        """Note that nobody waits for the answer any more; any thread may call it."""
        self._has_left = True

    def check(self) -> None:
        """OverError if the work shall end."""
        if self._has_left:
            raise OverError(LEFT)
        if time.monotonic() > self._until:
            raise OverError(TOO_LONG)


class Line:
    """The calls of one viewer: some have a place, the others wait in their order."""

    def __init__(self, turns: "Turns", *, is_stranger: bool) -> None:
        """Stand before places: the viewer's own, then those of all strangers."""
        self.turns, self.is_stranger = turns, is_stranger
        own = asyncio.Semaphore(STRANGERS if is_stranger else OWN)
        self._places = (own, turns.strangers) if is_stranger else (own,)
        self._waiting = 0

    @asynccontextmanager
    async def place(self, turn: Turn, *, patient: bool = False) -> AsyncIterator[None]:
        """Hold a place; BusyError for none in time. `patient`: of a stream, which may wait."""
        if self._waiting >= MOST_WAITING and not patient:
            raise BusyError(BUSY)
        async with AsyncExitStack() as held:
            self._waiting += 1
            try:
                async with asyncio.timeout(None if patient else WAIT_S):
                    for place in self._places:
                        await held.enter_async_context(place)
            except TimeoutError:
                raise BusyError(BUSY) from None
            finally:
                self._waiting -= 1
            turn.check()
            yield


class Turns:
    """The lines of all viewers; for one event loop."""

    def __init__(self) -> None:
        self.threads = anyio.CapacityLimiter(PLACES)
        self._lines: WeakValueDictionary[Hashable, Line] = WeakValueDictionary()
        self.strangers = asyncio.Semaphore(ALL_STRANGERS)
        self._sessions: WeakKeyDictionary[Turn, str] = WeakKeyDictionary()

    def line(self, viewer: Viewer, address: str) -> Line:
        """Where a viewer's calls from this address wait: one line for each user."""
        is_stranger = viewer.user is None and not viewer.is_trusted
        key = (is_stranger, viewer.user or "", "" if viewer.user else address)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(self, is_stranger=is_stranger)
        return line

    def begin(self, session: str = "") -> Turn:
        """A turn of one of Gradio's sessions, or of none."""
        turn = Turn()
        if session:
            self._sessions[turn] = session
        return turn

    def leave(self, session: str) -> None:
        """End what is done for a session whose page was closed."""
        for turn, of in list(self._sessions.items()):
            if of == session:
                turn.leave()


async def in_turn(act: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """What `act` returns, run in a thread when it is the current viewer's turn.

    Where nobody is known, as in a test of a handler alone, it runs at once.
    """
    scope, session = _current.get()
    line: Line | None = scope.get(LINE_KEY)
    if line is None:
        return await asyncio.to_thread(act, *given, **named)
    turn: Turn = scope.get(TURN_KEY) or line.turns.begin(session)

    async def wait_and_act(line: Line) -> T:
        async with line.place(turn, patient=True):
            with checked_by(turn.check):
                work = partial(act, *given, **named)
                return await anyio.to_thread.run_sync(work, limiter=line.turns.threads)

    return await ended_with(turn, wait_and_act(line))


async def ended_with(turn: Turn, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns; if the caller is cancelled, it is left to end by itself, and soon.

    It holds its place until then, as its thread cannot be stopped.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        turn.leave()
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


@contextmanager
def taking_turns(scope: Mapping[str, Any], session: str = "") -> Iterator[None]:
    """Within it, `in_turn` waits in the line of this request, or of this session's event."""
    token = _current.set((scope, session))
    try:
        yield
    finally:
        _current.reset(token)


_current: ContextVar[tuple[Mapping[str, Any], str]] = ContextVar("request", default=({}, ""))
