"""Forwarded headers count only from proxies that are named; what follows sees none of them.

A page can send any such header to its own origin, and after DNS rebinding that is this app.
"""

import logging

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

LOGGER = logging.getLogger(__name__)
FORWARDED = (b"x-forwarded-", b"forwarded", b"x-gradio-server")


class NamedProxies:
    """ASGI middleware: client, scheme and host are those that a named proxy tells, else as seen."""

    def __init__(self, app: ASGIApp, names: str) -> None:
        """Believe addresses and networks with commas between, or `*`; empty for none."""
        self._app = app
        self._named = ProxyHeadersMiddleware(self._told, names or [])  # type: ignore[arg-type]
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        address = (scope.get("client") or ("",))[0]
        if address in self._named.trusted_hosts:
            await self._named(scope, receive, send)  # type: ignore[arg-type]
            return
        seen = scope["headers"]
        scope["headers"] = [each for each in seen if not each[0].startswith(FORWARDED)]
        if len(scope["headers"]) < len(seen) and not self._has_warned:
            self._has_warned = True
            LOGGER.warning(
                "Forwarded headers from %s are not believed; if a proxy of yours is there, name "
                "it in FORWARDED_ALLOW_IPS.",
                address,
            )
        await self._app(scope, receive, send)

    async def _told(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value for name, value in scope["headers"] if name == b"x-forwarded-host"]
        headers = [each for each in scope["headers"] if not each[0].startswith(FORWARDED)]
        if hosts:
            # A proxy may add its own to what a client claims; the last is the nearest one's.
            host = hosts[-1].rpartition(b",")[2].strip()
            headers = [(b"host", host), *(each for each in headers if each[0] != b"host")]
        scope["headers"] = headers
        await self._app(scope, receive, send)
