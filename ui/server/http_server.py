"""Serves an app over HTTP; clients that are slow are left to the proxy before it."""

import resource
import socket
import threading
import time
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from ckv_core.errors import CkvError

MOST_CONNECTIONS = 1000
# Accepted at a time before any is looked at, so that the files suffice for all.
BACKLOG = 128
STOP_S = 5


class HttpServer:
    """One app on one port; it is served by a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        """Take the port, or CkvError; nobody is answered yet."""
        name = host.strip("[]")
        family = socket.AF_INET6 if ":" in name else socket.AF_INET
        try:
            self._socket = socket.create_server((name, port), family=family)
        except OSError as error:
            raise CkvError(
                f"Port {port} on {host} cannot be used ({error.strerror}); stop the other program "
                "or set CKV_PORT to a free port."
            ) from error
        # asyncio sets this for sockets that name their protocol, which those of `accept` here do
        # not: the second part of each answer waited 40 ms for the browser to confirm the first.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = "localhost" if name in ("0.0.0.0", "::") else name  # noqa: S104 - a comparison
        self.address = f"http://{f'[{name}]' if ':' in name else name}:{port}/"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, app: ASGIApp) -> None:
        """Return once the app answers, however long that takes; CkvError if it ended instead."""
        # Half of the files that this process may open are for others than clients.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(MOST_CONNECTIONS, files // 2)
        server = self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                limit_concurrency=most,
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
        run = partial(server.run, sockets=[self._socket])
        thread = self._thread = threading.Thread(target=run, name="http", daemon=True)
        thread.start()
        while not server.started:
            if not thread.is_alive():
                raise CkvError("The app could not start; its log says why.")
            time.sleep(0.01)

    def close(self) -> None:
        """Let the answers end, for a few seconds, and give the port back."""
        if self._server is not None and self._thread is not None and self._thread.is_alive():
            self._server.should_exit = True
            self._thread.join(2 * STOP_S)
        self._socket.close()
