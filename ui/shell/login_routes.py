"""Routes of logging in and out: /login, a page that works without scripts, and /logout."""

from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ui.accounts.accounts import DISABLED, SESSION_LASTS, Accounts
from ui.server.identity import LOGIN_PATH, SESSION_COOKIE, Identity, own_path
from ui.server.route_answers import NO_STORE
from ui.shell.plain_pages import plain_page, viewer_of

FORM_BYTES = 8192
WRONG = "There is no such user with this password; check both."


def login_routes(accounts: Accounts, identity: Identity) -> list[Route]:
    """All; only for an app with logins. The guard refuses forms of other sites."""

    async def show(request: Request) -> Response:
        target = own_path(request.query_params.get("next", "/"))
        if viewer_of(request).user is not None:
            return RedirectResponse(target, 303, NO_STORE)
        return _page(target)

    async def sign_in(request: Request) -> Response:
        form = await read_form(request)
        target, user = own_path(form.get("next", "/")), form.get("user", "")
        address = request.client.host if request.client else ""
        result = await identity.logins.verify(user, form.get("password", ""), address)
        if result.wait_s:
            told = f"Too many wrong logins; try again in {result.wait_s} s."
            wait = {"Retry-After": str(result.wait_s)}
            return _page(target, user, told, status=429, headers=wait)
        if result.user is None:
            return _page(target, user, WRONG, status=401)
        try:
            token = await run_in_threadpool(accounts.sign_in, result.user)
        except CkvError as error:
            return _page(target, user, str(error), status=503)
        if token is None:
            return _page(target, user, DISABLED, status=403)
        response = RedirectResponse(target, 303, NO_STORE)
        response.set_cookie(
            SESSION_COOKIE,
            token,
            max_age=int(SESSION_LASTS.total_seconds()),
            httponly=True,
            secure=request.url.scheme == "https",
            samesite="lax",
        )
        return response

    async def sign_out(_: Request) -> Response:
        await run_in_threadpool(accounts.sign_out)
        response = RedirectResponse(LOGIN_PATH, 303, NO_STORE)
        response.delete_cookie(SESSION_COOKIE)
        return response

    return [
        Route(LOGIN_PATH, show),
        Route(LOGIN_PATH, sign_in, methods=["POST"]),
        Route("/logout", sign_out, methods=["POST"]),
    ]


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a small form; the first value of each, nothing of one that is too big."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES:
            return {}
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {name: values[0] for name, values in fields.items()}


def _page(
    target: str,
    user: str = "",
    told: str = "",
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Response:
    return plain_page(
        "login", "Log in", None, status=status, headers=headers, next=target, user=user, told=told
    )
