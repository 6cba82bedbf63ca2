"""Guards around every request: body size, logins, foreign hosts, security headers. Pure ASGI."""

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.access import EVERYBODY, SCOPE_KEY, Viewer, acting_as
from ui.logins import Logins
from ui.settings import LOOPBACK_HOSTS, Settings
from ui.shares import COOKIE_PREFIX

OpenedRuns = Callable[[Iterable[tuple[str, str]]], frozenset[str]]

# Gradio fetches whatever URL stands behind these; uploads are read in the browser instead. The
# last one would write a session's values into a file.
BLOCKED_PREFIXES = (
    "/gradio_api/file=http",
    "/gradio_api/file/http",
    "/gradio_api/proxy=",
    "/gradio_api/upload",
    "/gradio_api/deep_link",
)
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/gradio_api/startup-events"})
OPEN_PREFIX = "/s/"
# What the Run page needs of Gradio; its handlers ask ui.access themselves.
SHARE_PATHS = frozenset(
    {
        "/run",
        "/config",
        "/theme.css",
        "/favicon.ico",
        "/manifest.json",
        "/plotly.js",
        "/gradio_api/theme.css",
        "/gradio_api/app_id",
        "/gradio_api/queue/join",
        "/gradio_api/queue/data",
        "/gradio_api/run/predict",
        "/gradio_api/cancel",
        "/gradio_api/reset",
    }
)
SHARE_PREFIXES = ("/assets/", "/static/", "/svelte/", "/gradio_api/heartbeat/")
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
    "bluetooth=(), hid=(), payment=(), publickey-credentials-get=(), clipboard-read=()"
)


class Guard:
    """ASGI middleware that answers for the app what must never reach it."""

    def __init__(
        self, app: ASGIApp, settings: Settings, opened_runs: OpenedRuns | None = None
    ) -> None:
        """Guard an app.

        Args:
            app: answers what may pass.
            settings: of the app.
            opened_runs: the runs that share cookies open; without it none does.
        """
        self._app = app
        self._settings = settings
        self._opened_runs = opened_runs
        self._logins = Logins(settings.users) if settings.users else None
        ancestors = "'self'"
        if settings.space_host:
            ancestors += " https://huggingface.co https://*.huggingface.co"
        self._headers = {
            "Content-Security-Policy": CONTENT_POLICY.format(ancestors=ancestors),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Permissions-Policy": PERMISSIONS,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with the viewer, a capped body and our headers."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # No page of ours opens a socket.
            await send({"type": "websocket.close", "code": 1008})
            return
        send = self._with_headers(send, is_https=scope.get("scheme") == "https")
        refusal = self._refusal(scope) or await self._identify(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        limit = self._settings.limits.body_bytes
        if str(scope["path"]).startswith("/gradio_api/"):
            # Gradio's queue may be started by a request and must not inherit its viewer.
            await _capped(self._app, scope, receive, send, limit)
            return
        with acting_as(scope[SCOPE_KEY]):
            await _capped(self._app, scope, receive, send, limit)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if reason := self._foreign(headers, scope["method"]):
            return PlainTextResponse(reason, 403)
        if str(scope["path"]).lower().startswith(BLOCKED_PREFIXES):
            return PlainTextResponse("This app fetches no URL and takes no uploaded file.", 403)
        length = headers.get("content-length", "0")
        limit = self._settings.limits.body_bytes
        if not (length.isascii() and length.isdigit()) or int(length[:20]) > limit:
            return _too_large(limit)
        return None

    def _foreign(self, headers: Headers, method: str) -> str | None:
        """Why a request does not come from the app's own page.

        A hostile page can point its own host name at 127.0.0.1 (DNS rebinding), or post to the
        app with the login that the browser remembers.
        """
        host = _hostname(f"//{headers.get('host', '')}")
        known = self._settings.allowed_hosts
        if known or self._settings.is_loopback:
            known = known | LOOPBACK_HOSTS
            if host not in known:
                return (
                    "The app does not answer to this name; open it as http://127.0.0.1 or "
                    "localhost, or add the name to CKV_ALLOWED_HOSTS."
                )
        if method in ("GET", "HEAD"):
            return None
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if origin := headers.get("origin"):
            is_foreign = is_foreign or not self._is_own(origin, headers)
        return "Requests from other sites are refused." if is_foreign else None

    def _is_own(self, origin: str, headers: Headers) -> bool:
        """Whether a page's origin is the app's: name and port, as another port is another page.

        The app sees the scheme of its proxy, not the browser's; no other site's page can set the
        forwarded host.
        """
        named = {headers.get("host"), headers.get("x-forwarded-host"), self._settings.space_host}
        own = {name for name in named | self._settings.allowed_hosts if name}
        scheme = origin.partition(":")[0]
        asked = _authority(origin)
        return asked is not None and asked in {_authority(f"{scheme}://{name}") for name in own}

    async def _identify(self, scope: Scope) -> PlainTextResponse | None:
        """Note in the scope who asks, or say why nobody may."""
        if self._logins is None:
            scope[SCOPE_KEY] = EVERYBODY
            return None
        headers, path = Headers(scope=scope), str(scope["path"])
        address = (scope.get("client") or ("",))[0]
        result = await self._logins.check(headers.get("authorization", ""), address)
        if result.wait_s:
            return PlainTextResponse(
                f"Too many wrong logins; try again in {result.wait_s} s.",
                429,
                {"Retry-After": str(result.wait_s)},
            )
        shared = await self._shared(headers)
        scope[SCOPE_KEY] = Viewer(user=result.user, shared=shared)
        is_open = path in OPEN_PATHS or path.startswith(OPEN_PREFIX)
        if result.user or is_open or (shared and _serves_share(path, shared)):
            return None
        return PlainTextResponse(
            "Log in to use this app.",
            401,
            {"WWW-Authenticate": 'Basic realm="CriticalKV Lab", charset="UTF-8"'},
        )

    async def _shared(self, headers: Headers) -> frozenset[str]:
        given = [
            (name.removeprefix(COOKIE_PREFIX), token)
            for name, token in cookie_parser(headers.get("cookie", "")).items()
            if name.startswith(COOKIE_PREFIX)
        ]
        if not given or self._opened_runs is None:
            return frozenset()
        return await anyio.to_thread.run_sync(self._opened_runs, given)

    def _with_headers(self, send: Send, *, is_https: bool) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                if is_https:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        return send_with_headers


def _serves_share(path: str, shared: frozenset[str]) -> bool:
    """Whether a path belongs to the Run page, or to the data of one of these runs."""
    if path in SHARE_PATHS or path.startswith(SHARE_PREFIXES):
        return True
    parts = path.split("/")
    return len(parts) > 2 and parts[1] in ("data", "r") and parts[2] in shared


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _authority(origin: str) -> tuple[str, int] | None:
    """Name and port; None if it has no name, as an origin of null."""
    try:
        parts = urlsplit(origin)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None


def _too_large(limit: int) -> PlainTextResponse:
    return PlainTextResponse(f"The request is over {limit // 2**20} MiB; shorten the context.", 413)


async def _capped(app: ASGIApp, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
    """Run the app; once the body passes the cap, whatever it answers becomes a 413.

    A chunked body has no length to look at beforehand.
    """
    received = 0
    started = refused = False

    async def receive_capped() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > limit:
                return {"type": "http.disconnect"}
        return message

    async def send_capped(message: Message) -> None:
        nonlocal started, refused
        if received <= limit or started:
            started = True
            await send(message)
        elif not refused:
            refused = True
            await _too_large(limit)(scope, receive, send)

    try:
        await app(scope, receive_capped, send_capped)
    except ClientDisconnect:
        if received <= limit:
            raise
        if not (started or refused):
            await _too_large(limit)(scope, receive, send)
