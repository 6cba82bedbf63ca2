"""Routes of /account: a user's own API tokens and sessions."""

from collections.abc import Awaitable, Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ui.accounts.access import AccessError
from ui.accounts.accounts import EXPIRIES_DAYS, NAME_CHARS, SCOPES, Accounts
from ui.server.route_answers import NO_STORE
from ui.shell.login_routes import read_form
from ui.shell.plain_pages import plain_page, viewer_of

PATH = "/account"
MOST_DIGITS = 18


def account_routes(accounts: Accounts) -> list[Route]:
    """All; only for an app with logins. The guard refuses forms of other sites."""

    def page(request: Request, *, token: str = "", told: str = "") -> Response:
        viewer = viewer_of(request)
        return plain_page(
            "account",
            "Account",
            viewer,
            status=400 if told else 200,
            user=viewer.user,
            is_admin=viewer.is_admin,
            tokens=accounts.open("token"),
            sessions=accounts.open("session"),
            current=viewer.credential,
            scopes={scope: name for name, scope in SCOPES.items()},
            expiries=list(EXPIRIES_DAYS),
            name_chars=NAME_CHARS,
            token=token,
            told=told,
        )

    async def show(request: Request) -> Response:
        return await run_in_threadpool(page, request)

    async def make(request: Request) -> Response:
        form = await read_form(request)
        given = (form.get(name, "") for name in ("name", "scope", "expiry"))
        try:
            token = await run_in_threadpool(accounts.make_token, *given)
        except AccessError:
            raise
        except CkvError as error:
            return await run_in_threadpool(page, request, told=str(error))
        return await run_in_threadpool(page, request, token=token)

    async def revoke(request: Request) -> Response:
        number = (await read_form(request)).get("id", "")
        if number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS:
            await run_in_threadpool(accounts.revoke, int(number))
        return RedirectResponse(PATH, 303, NO_STORE)

    return [
        Route(PATH, refusing(show)),
        Route(f"{PATH}/tokens", refusing(make), methods=["POST"]),
        Route(f"{PATH}/revoke", refusing(revoke), methods=["POST"]),
    ]


def refusing(
    handle: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """The handler; what it refuses becomes a page that says why."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except CkvError as error:
            status = 403 if isinstance(error, AccessError) else 503
            viewer = viewer_of(request)
            return plain_page("refused", "Not possible", viewer, status=status, told=str(error))

    return answer
