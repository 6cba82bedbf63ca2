"""`python -m tests.ui.server.http_child PORT`: a small app behind our HTTP server; few files."""

import resource
import sys
import threading

from starlette.types import Receive, Scope, Send

from ckv_core.base import logs
from ui.server.http_server import HttpServer

FILES = 400


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """200 and a word to each request."""
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


def main() -> None:
    """Serve until standard input ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    logs.configure("text", "app")
    server = HttpServer("127.0.0.1", int(sys.argv[1]))
    server.start(answer)
    threading.Thread(target=print, args=("ready",), kwargs={"flush": True}).start()
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main()
