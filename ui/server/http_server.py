"""Serves an app over HTTP, so that no client can hold it up by what it does not send or read."""

import errno
import logging
import resource
import socket
import threading
import time
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ckv_core.errors import CkvError

LOGGER = logging.getLogger(__name__)
HEAD_S = 10.0  # for all headers of a request, from the connection or the last answer on
BODY_S = 30.0  # for a body, and ...
BODY_RATE = 16 * 1024  # ... a second more for each so many bytes of it that came
STALL_S = 60.0  # in which a client must take something of what waits for it
MOST_CONNECTIONS = 1000
# Accepted at a time before any is looked at, so that the files suffice for all.
BACKLOG = 128
STOP_S = 5
BUSY = b"All connections of the app are in use; try again in a moment.\n"


class HttpServer:
    """One app on one port; it is served by a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        """Take the port, or CkvError; nobody is answered yet."""
        self._sockets = _bound(host, port)
        name = host.strip("[]")
        name = "localhost" if name in ("0.0.0.0", "::") else name  # noqa: S104 - a comparison
        self.address = f"http://{f'[{name}]' if ':' in name else name}:{port}/"
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self, app: ASGIApp) -> None:
        """Return once the app answers, however long that takes; CkvError if it ended instead."""
        # Half of the files that this process may open are for others than clients.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(MOST_CONNECTIONS, files // 2)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                # What uvicorn could find instead has other ways to wait.
                http=cast("Any", partial(Connection, most=most)),
                loop="asyncio",
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise CkvError("The app could not start; its log says why.")
            time.sleep(0.01)

    def close(self) -> None:
        """Let the answers end, for a few seconds, and give the port back."""
        if self._server is not None and self._thread.is_alive():
            self._server.should_exit = True
            self._thread.join(2 * STOP_S)
        for bound in self._sockets:
            bound.close()

    def _run(self) -> None:
        if self._server is not None:
            self._server.run(sockets=self._sockets)


class Connection(H11Protocol):
    """A connection that ends when its client is too slow, or others need its place.

    It waits from a moment on: for the headers of a request (the first, or the next one), then for
    the body. While the app answers it does not wait.
    """

    def __init__(self, *args: Any, most: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self._most = most
        self._waits_for: tuple[str, object] | None = None
        self._since = 0.0
        self._received = 0
        self._timer: Any = None
        self._stall_timer: Any = None

    @property
    def is_waiting(self) -> bool:
        return self._waits_for is not None and not self.transport.is_closing()

    def connection_made(self, transport: Any) -> None:
        """Begin to wait; if there are too many connections, one of them ends."""
        super().connection_made(transport)
        self._look()
        if len(self.connections) > self._most:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Count what came, and find out what comes next."""
        self._received += len(data)
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The client takes less than it is sent; see to it that it takes something."""
        super().pause_writing()
        self._watch_stall(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timers(stall_only=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waits_for = None
        self._stop_timers()
        super().connection_lost(exc)

    def end(self) -> None:
        """Close it; what was answered is still sent."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.transport.abort()

    def _look(self) -> None:
        cycle = self.cycle
        waits_for: tuple[str, object] | None = None
        if cycle is None or cycle.response_complete:
            waits_for = ("headers", cycle)
        elif cycle.more_body:
            waits_for = ("body", cycle)
        if waits_for == self._waits_for or self.transport.is_closing():
            return
        self._waits_for = waits_for
        self._since, self._received = self.loop.time(), 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if waits_for is None else self.loop.call_at(self._due(), self._late)

    def _due(self) -> float:
        if self._waits_for is not None and self._waits_for[0] == "body":
            return self._since + BODY_S + self._received / BODY_RATE
        return self._since + HEAD_S

    def _late(self) -> None:
        if self.flow.read_paused:
            self._since = self.loop.time()  # the app is the one that keeps the client waiting
        if self._due() <= self.loop.time():
            self.end()
        else:
            self._timer = self.loop.call_at(self._due(), self._late)

    def _watch_stall(self, waiting: int) -> None:
        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if left >= waiting:
                self.transport.abort()
            else:
                self._watch_stall(left)

        self._stop_timers(stall_only=True)
        self._stall_timer = self.loop.call_later(STALL_S, look)

    def _stop_timers(self, *, stall_only: bool = False) -> None:
        for timer in (self._stall_timer, None if stall_only else self._timer):
            if timer is not None:
                timer.cancel()

    def _make_room(self) -> None:
        """End the connection that has waited longest, or this one if all others are in use."""
        others = [other for other in self.connections if isinstance(other, Connection)]
        waiting = [other for other in others if other is not self and other.is_waiting]
        if waiting:
            min(waiting, key=lambda other: other._since).end()
            return
        LOGGER.warning("All %d connections are in use; a new one was refused.", self._most)
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(BUSY)}\r\n"
        head += "Content-Type: text/plain\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + BUSY)
        self.transport.close()


def _bound(host: str, port: int) -> list[socket.socket]:
    bound: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            opened = socket.socket(family, kind, protocol)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                opened.bind(address)
            except OSError as error:
                opened.close()
                # localhost may name an address that this machine does not have.
                if error.errno != errno.EADDRNOTAVAIL or len(addresses) == 1:
                    raise
                continue
            bound.append(opened)
    except OSError as error:
        for opened in bound:
            opened.close()
        raise CkvError(
            f"Port {port} on {host} cannot be used ({error.strerror}); stop the other program or "
            "set CKV_PORT to a free port."
        ) from error
    return bound
