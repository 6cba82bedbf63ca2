"""Who sends a request: session, API token or share links; and who may not pass."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Message, Scope, Send

from ckv_core.errors import StorageError
from ui.accounts.access import READS_ONLY, SCOPE_KEY, Viewer
from ui.accounts.credentials import Accounts
from ui.accounts.logins import Logins
from ui.server.route_answers import NO_STORE
from ui.server.rules import is_of_a_run, rule_of
from ui.services.library import COOKIE_PREFIX, Shares
from ui.users import User

SESSION_COOKIE = "ckv_session"
LOGIN_PATH = "/login"
FOR_PROGRAMS = ("/api/", "/gradio_api/")
READING = ("GET", "HEAD", "OPTIONS")
THREADS = 8
MOST_CHECKS = 1024
CHECKED_AGAIN_S = 1.0  # how long a stream outlives its login
_OWN_PATH = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")


class Identity:
    """Tells the viewer of each request to what follows; for one event loop."""

    def __init__(self, users: Mapping[str, User], accounts: Accounts, shares: Shares) -> None:
        self._accounts, self._shares = accounts, shares
        # Its own threads: who somebody is can be found out while all others are busy.
        self.threads = anyio.CapacityLimiter(THREADS)
        self._checks: dict[object, tuple[float, asyncio.Future[Viewer]]] = {}
        self.logins = Logins(users, on_failure=accounts.note_failure)

    async def identify(self, scope: Scope) -> Response | None:
        """Note the viewer in the scope, or answer why the request is refused."""
        headers = Headers(scope=scope)
        try:
            viewer = await self._viewer_of(headers)
        except StorageError as error:
            return PlainTextResponse(str(error), 503, NO_STORE)
        scope[SCOPE_KEY] = viewer
        return _refusal(scope, viewer)

    def while_welcome(self, scope: Scope, send: Send) -> Send:
        """Send an answer as long as its login is good: one may end in the middle of a stream."""
        clock = asyncio.get_running_loop().time
        checked_at = clock()
        ended = False

        async def send_while_welcome(message: Message) -> None:
            nonlocal checked_at, ended
            if ended:
                return
            if message["type"] == "http.response.body" and clock() - checked_at > CHECKED_AGAIN_S:
                checked_at = clock()
                if not await self._is_still_welcome(scope):
                    ended = True
                    message = {"type": "http.response.body", "body": b""}
            await send(message)

        return send_while_welcome

    async def _is_still_welcome(self, scope: Scope) -> bool:
        before: Viewer = scope[SCOPE_KEY]
        headers, clock = Headers(scope=scope), asyncio.get_running_loop().time
        key = (headers.get("authorization"), headers.get("cookie"))
        checked_at, check = self._checks.get(key, (-CHECKED_AGAIN_S, None))
        if check is None or clock() - checked_at >= CHECKED_AGAIN_S:
            # One check serves all streams of a login.
            check = asyncio.ensure_future(self._viewer_of(headers))
            self._checks[key] = clock(), check
            while len(self._checks) > MOST_CHECKS:
                del self._checks[next(iter(self._checks))]
        try:
            now = await asyncio.shield(check)
        except StorageError:
            return True  # it was good a moment ago
        return now.user == before.user and now.shared >= before.shared

    async def _viewer_of(self, headers: Headers) -> Viewer:
        return await anyio.to_thread.run_sync(self._viewer, headers, limiter=self.threads)

    def _viewer(self, headers: Headers) -> Viewer:
        cookies = cookie_parser(headers.get("cookie", ""))
        scheme, _, token = headers.get("authorization", "").partition(" ")
        viewer = None
        if scheme.lower() == "bearer":
            viewer = self._accounts.viewer("token", token.strip())
        elif SESSION_COOKIE in cookies:
            viewer = self._accounts.viewer("session", cookies[SESSION_COOKIE])
        shared = [
            (name.removeprefix(COOKIE_PREFIX), value)
            for name, value in cookies.items()
            if name.startswith(COOKIE_PREFIX)
        ]
        return replace(viewer or Viewer(), shared=self._shares.slugs(shared))


def own_path(text: str) -> str:
    """Where to go after the login: a path of this app, never another site; / for anything else."""
    return text if _OWN_PATH.fullmatch(text) else "/"


def _refusal(scope: Scope, viewer: Viewer) -> Response | None:
    path = str(scope["path"])
    if viewer.user is not None:
        # Gradio's calls are all POST; what they do is checked by ui/accounts/access.py.
        reads = scope["method"] in READING or path.startswith("/gradio_api/")
        return None if reads or viewer.scope != "read" else PlainTextResponse(READS_ONLY, 403)
    who = rule_of(path).who
    by_share = bool(viewer.shared) and (who == "guest" or is_of_a_run(path, viewer.shared))
    if who == "anyone" or by_share:
        return None
    if navigates(scope):
        query = scope.get("query_string", b"").decode("latin-1")
        target = quote(f"{path}?{query}" if query else path, safe="")
        return RedirectResponse(f"{LOGIN_PATH}?next={target}", 303, NO_STORE)
    return PlainTextResponse("Log in to use this app.", 401, {"WWW-Authenticate": "Bearer"})


def navigates(scope: Scope) -> bool:
    """Whether somebody opens an address in a browser, not a program or a page's script."""
    if scope["method"] != "GET" or str(scope["path"]).startswith(FOR_PROGRAMS):
        return False
    headers = Headers(scope=scope)
    mode = headers.get("sec-fetch-mode", "navigate")
    return mode == "navigate" and "text/html" in headers.get("accept", "")
