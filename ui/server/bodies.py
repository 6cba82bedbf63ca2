"""Bounds what a request may carry before anything of it is read: size, JSON, all large ones."""

from collections.abc import Callable

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ckv_core.errors import ConfigError
from ckv_core.runtime.json_text import JsonBounds
from ui.accounts.access import EVERYBODY, SCOPE_KEY
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
        small = SMALL_BYTES if is_known else STRANGERS_BYTES
        is_large = kind != "small" and is_known
        body = _Body(self._most if is_large else min(small, self._most), self._hold)
        try:
            body.expect(Headers(scope=scope).get("content-length"))
            await body.read(receive)
            if kind != "file":
                await body.check()
        except _RefusedError as refused:
            await refused.answer(scope, receive, send)
        except ClientDisconnect:
            return
        else:
            await self._app(scope, body.again(receive), send)
        finally:
            body.let_go()

    def _hold(self, more: int) -> bool:
        if more > 0 and self._held + more > HELD * self._most:
            return False
        self._held += more
        return True


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


class _Body:
    def __init__(self, most: int, hold: Callable[[int], bool]) -> None:
        self._most = most
        self._hold = hold
        self._held = 0
        self._data = b""

    def expect(self, length: str | None) -> None:
        """Refuse by what the headers say, before anything is sent."""
        if length is None:
            return
        if not (length.isascii() and length.isdigit()):
            raise _RefusedError(400, "The request's Content-Length is no number.")
        self._check_size(int(length[:20]))

    async def read(self, receive: Receive) -> None:
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._check_size(size)
            more = message.get("more_body", False)
        self._data = b"".join(parts)

    async def check(self) -> None:
        """Refuse what would be too much once it is parsed, which happens on the event loop."""
        if b"\0" in self._data:
            # UTF-16 would hide its quotes from us, and not from the parser.
            raise _RefusedError(413, "The request is not in UTF-8.")
        try:
            if len(self._data) <= COUNTED_BYTES:
                BOUNDS.check(self._data)
            else:
                await anyio.to_thread.run_sync(BOUNDS.check, self._data)
        except ConfigError as error:
            raise _RefusedError(413, str(error)) from None

    def again(self, receive: Receive) -> Receive:
        data, self._data = self._data, b""
        return received_again(data, receive)

    def let_go(self) -> None:
        self._hold(-self._held)
        self._held = 0

    def _check_size(self, size: int) -> None:
        if size > self._most:
            what = "shorten the context" if self._most > SMALL_BYTES else "send less at a time"
            most = f"{self._most // 2**20} MiB" if self._most >= SMALL_BYTES else "64 KiB"
            raise _RefusedError(413, f"The request is over {most}; {what}.")
        if size > COUNTED_BYTES and size > self._held:
            if not self._hold(size - self._held):
                raise _RefusedError(503, BUSY)
            self._held = size
