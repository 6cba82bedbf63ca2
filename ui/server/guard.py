"""Guards around every request: proxies, other sites, logins, security headers. Pure ASGI."""

import logging
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ui.accounts.access import EVERYBODY, SCOPE_KEY, acting_as
from ui.accounts.turns import LINE_KEY, Turns, taking_turns
from ui.server.gates import Bodies, TurnGate
from ui.server.identity import Identity
from ui.server.private import ENDED_KEY
from ui.server.rules import HEALTH, may_be_framed, rule_of
from ui.settings import Settings

LOGGER = logging.getLogger(__name__)
FOREIGN = "Requests from other sites are refused; open the app itself."
UNKNOWN_NAME = (
    "The app does not answer to this name; open it as http://127.0.0.1 or localhost, or add the "
    "name to CKV_ALLOWED_HOSTS."
)
FORWARDED = (b"x-forwarded-", b"forwarded", b"x-gradio-server")
CONTENT_POLICY = (
    "default-src 'self'; "
    # gr.HTML compiles its scripts with new Function.
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; "
    "font-src 'self' data:; "
    "connect-src 'self'; "
    "worker-src 'self' blob:; "
    "object-src 'none'; "
    "base-uri 'self'; "
    "form-action 'self'; "
    "frame-ancestors {ancestors}"
)
PERMISSIONS = (
    "camera=(), microphone=(), geolocation=(), display-capture=(), usb=(), serial=(), "
    "hid=(), payment=(), publickey-credentials-get=(), clipboard-read=()"
)


class Guard:
    def __init__(
        self, app: ASGIApp, settings: Settings, identity: Identity | None, turns: Turns
    ) -> None:
        """Guard an app; one without logins has no identity."""
        self._app = Bodies(TurnGate(app), settings.limits.body_bytes)
        self._turns = turns
        self._settings = settings
        self._identity = identity
        self._own_site = OwnSite(settings)
        if settings.users and identity is None:
            raise ValueError("an app with logins needs an identity")
        ancestors = "'self'"
        if settings.space_host:
            ancestors += " https://huggingface.co https://*.huggingface.co"
        self._policy = CONTENT_POLICY.format(ancestors=ancestors)
        self._framed = CONTENT_POLICY.format(ancestors="*")
        self._headers = {
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Permissions-Policy": PERMISSIONS,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        self._framed_headers = self._headers | {"Cross-Origin-Resource-Policy": "cross-origin"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # No page of ours opens a socket.
            await send({"type": "websocket.close", "code": 1008})
            return
        send = self._with_headers(send, scope)
        refusal = self._refusal(scope)
        if self._identity is None:
            scope[SCOPE_KEY] = EVERYBODY
        elif refusal is None:
            refusal = await self._identity.identify(scope)
            send = self._identity.while_welcome(scope, send)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        address = (scope.get("client") or ("",))[0]
        scope[LINE_KEY] = self._turns.line(scope[SCOPE_KEY], address)
        if str(scope["path"]).startswith("/gradio_api/"):
            # Gradio's queue may be started by a request and must not inherit its viewer.
            await self._app(scope, receive, send)
            return
        with acting_as(scope[SCOPE_KEY]), taking_turns(scope):
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["path"] == HEALTH:  # a balancer asks by whatever address, and hears no secret
            return None
        headers = Headers(scope=scope)
        framed = may_be_framed(str(scope["path"]), scope["query_string"])
        if reason := self._own_site.refusal(headers, scope["method"], may_be_framed=framed):
            return PlainTextResponse(reason, 403)
        if rule_of(str(scope["path"])).who == "nobody":
            return PlainTextResponse("This app fetches no URL and takes no uploaded file.", 403)
        return None

    def _with_headers(self, send: Send, scope: Scope) -> Send:
        framed = may_be_framed(str(scope["path"]), scope["query_string"])

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._framed_headers if framed else self._headers)
                # One that an answer has besides can only forbid more.
                headers.append("Content-Security-Policy", self._framed if framed else self._policy)
                if scope.get(ENDED_KEY):
                    headers["X-Stream-Ended"] = "1"
                if scope.get("scheme") == "https":
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        return send_with_headers


class OwnSite:
    """Whether a request comes from the app's own pages, or from another site in the same browser.

    Browsers send `Origin` and `Sec-Fetch-*`, which no page can set. Programs send neither.
    """

    def __init__(self, settings: Settings) -> None:
        self._names = settings.allowed_hosts
        self._space_host = settings.space_host
        # Hugging Face shows a Space inside a page of its own.
        self._shown_in = ("document", "iframe") if settings.space_host else ("document",)

    def refusal(self, headers: Headers, method: str, *, may_be_framed: bool = False) -> str | None:
        """Why a request is not taken, reading included; None if it is."""
        name, _ = _authority(f"http://{headers.get('host', '')}") or ("", 0)
        if self._names and name not in self._names:
            # A hostile page can point its own name at this machine (DNS rebinding).
            return UNKNOWN_NAME
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin, headers):
            return FOREIGN
        site = headers.get("sec-fetch-site", "none")
        shown_in = (*self._shown_in, "iframe") if may_be_framed else self._shown_in
        if site in ("none", "same-origin") or _is_visit(headers, method, shown_in):
            return None
        return FOREIGN

    def _is_own(self, origin: str, headers: Headers) -> bool:
        """Whether a page's origin is the app's: name and port, as another port is another page.

        The app sees the scheme of its proxy, not the browser's.
        """
        scheme = origin.partition(":")[0]
        names = (headers.get("host"), self._space_host)
        page = _authority(origin)
        return page is not None and page in [
            _authority(f"{scheme}://{name}") for name in names if name
        ]


def _is_visit(headers: Headers, method: str, shown_in: Collection[str]) -> bool:
    """Whether somebody follows a link to the app; the other site sees nothing of the answer."""
    return (
        method == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") in shown_in
    )


def _authority(origin: str) -> tuple[str, int] | None:
    """Name and port; None if it has no name, as an origin of null."""
    try:
        parts = urlsplit(origin)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None


class NamedProxies:
    """ASGI middleware: client, scheme and host are those that a named proxy sends, else as seen.

    Forwarded headers count only from proxies that are named; what follows sees none of them. A page
    can send any such header to its own origin, and after DNS rebinding that is this app.
    """

    def __init__(self, app: ASGIApp, names: str) -> None:
        """Believe addresses and networks with commas between, or `*`; empty for none."""
        self._app = app
        self._named = ProxyHeadersMiddleware(self._forwarded, names or [])  # type: ignore[arg-type]
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

    async def _forwarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value for name, value in scope["headers"] if name == b"x-forwarded-host"]
        headers = [each for each in scope["headers"] if not each[0].startswith(FORWARDED)]
        if hosts:
            # A proxy may add its own to what a client claims; the last is the nearest one's.
            host = hosts[-1].rpartition(b",")[2].strip()
            headers = [(b"host", host), *(each for each in headers if each[0] != b"host")]
        scope["headers"] = headers
        await self._app(scope, receive, send)
