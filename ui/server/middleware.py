"""Guards around every request: other sites, logins, bodies, security headers. Pure ASGI."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.accounts.access import EVERYBODY, SCOPE_KEY, acting_as
from ui.accounts.turns import LINE_KEY, Turns, taking_turns
from ui.server.bodies import Bodies
from ui.server.identity import Identity
from ui.server.own_site import OwnSite
from ui.server.turn_gate import TurnGate
from ui.settings import Settings

# Gradio fetches whatever URL stands behind these; uploads are read in the browser instead. The
# last one would write a session's values into a file.
BLOCKED_PREFIXES = (
    "/gradio_api/file=http",
    "/gradio_api/file/http",
    "/gradio_api/proxy=",
    "/gradio_api/upload",
    "/gradio_api/deep_link",
)
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
    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        identity: Identity | None = None,
        turns: Turns | None = None,
    ) -> None:
        """Guard an app; one without logins has no identity."""
        self._app = Bodies(TurnGate(app), settings.limits.body_bytes)
        self._turns = turns or Turns()
        self._settings = settings
        self._identity = identity
        self._own_site = OwnSite(settings)
        if settings.users and identity is None:
            raise ValueError("an app with logins needs to know who asks")
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
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # No page of ours opens a socket.
            await send({"type": "websocket.close", "code": 1008})
            return
        send = self._with_headers(send, is_https=scope.get("scheme") == "https")
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
        headers = Headers(scope=scope)
        if reason := self._own_site.refusal(headers, scope["method"]):
            return PlainTextResponse(reason, 403)
        if str(scope["path"]).lower().startswith(BLOCKED_PREFIXES):
            return PlainTextResponse("This app fetches no URL and takes no uploaded file.", 403)
        return None

    def _with_headers(self, send: Send, *, is_https: bool) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                if is_https:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        return send_with_headers
