"""Guards around every request: body size, login, foreign hosts, security headers. Pure ASGI."""

import base64
import binascii
import secrets
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.settings import LOOPBACK_HOSTS, Settings

# 4 million characters of JSON-escaped text need 24 MB at most.
MAX_BODY_BYTES = 32 * 2**20
# Gradio fetches whatever URL stands behind these; uploads are read in the browser instead.
BLOCKED_PREFIXES = (
    "/gradio_api/file=http",
    "/gradio_api/file/http",
    "/gradio_api/proxy=",
    "/gradio_api/upload",
)
OPEN_PATHS = frozenset({"/healthz", "/gradio_api/startup-events"})
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


class Guard:
    """ASGI middleware that answers for the app what must never reach it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        ancestors = "'self'"
        if settings.space_host:
            ancestors += " https://huggingface.co https://*.huggingface.co"
        self._headers = {
            "Content-Security-Policy": CONTENT_POLICY.format(ancestors=ancestors),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with a capped body and our headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._with_headers(send)
        refusal = self._refusal(scope)
        if refusal is None:
            await _capped(self._app, scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        path = str(scope["path"]).lower()
        if self._settings.is_loopback and (reason := _foreign(headers, scope["method"])):
            return PlainTextResponse(reason, 403)
        if path not in OPEN_PATHS and not self._logged_in(headers):
            return PlainTextResponse(
                "Log in to use this app.",
                401,
                {"WWW-Authenticate": 'Basic realm="CriticalKV Lab", charset="UTF-8"'},
            )
        if path.startswith(BLOCKED_PREFIXES):
            return PlainTextResponse("This app fetches no URL and takes no uploaded file.", 403)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            return _too_large()
        return None

    def _logged_in(self, headers: Headers) -> bool:
        if self._settings.login is None:
            return True
        scheme, _, encoded = headers.get("authorization", "").partition(" ")
        try:
            given = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            return False
        wanted = ":".join(self._settings.login).encode()
        return scheme.lower() == "basic" and secrets.compare_digest(given, wanted)

    def _with_headers(self, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        return send_with_headers


def _foreign(headers: Headers, method: str) -> str | None:
    """Why a request to a loopback app does not come from this machine's own page.

    A hostile page can point its own host name at 127.0.0.1 (DNS rebinding) or post to it.
    """
    if _hostname(f"//{headers.get('host', '')}") not in LOOPBACK_HOSTS:
        return "Open the app as http://127.0.0.1 or localhost, or set CKV_HOST to serve others."
    origin = headers.get("origin")
    if origin and method not in ("GET", "HEAD") and _hostname(origin) not in LOOPBACK_HOSTS:
        return "Requests from other sites are refused."
    return None


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _too_large() -> PlainTextResponse:
    return PlainTextResponse(
        f"The request is over {MAX_BODY_BYTES // 2**20} MiB; shorten the context.", 413
    )


async def _capped(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
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
            if received > MAX_BODY_BYTES:
                return {"type": "http.disconnect"}
        return message

    async def send_capped(message: Message) -> None:
        nonlocal started, refused
        if received <= MAX_BODY_BYTES or started:
            started = True
            await send(message)
        elif not refused:
            refused = True
            await _too_large()(scope, receive, send)

    try:
        await app(scope, receive_capped, send_capped)
    except ClientDisconnect:
        if received <= MAX_BODY_BYTES:
            raise
        if not (started or refused):
            await _too_large()(scope, receive, send)
