"""Pages of users, which work without scripts: log in and out, one's account, administration."""

from collections.abc import Callable

import anyio.to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError, ConfigError, StorageError
from ui.accounts.access import SCOPE_KEY, AccessError, Viewer
from ui.accounts.administration import Administration
from ui.accounts.credentials import (
    DISABLED,
    EXPIRIES_DAYS,
    NAME_CHARS,
    SCOPES,
    SESSION_LASTS,
    Accounts,
)
from ui.server.identity import LOGIN_PATH, SESSION_COOKIE, Identity, own_path
from ui.server.route_answers import NO_STORE, give_cookie
from ui.shell.plain_pages import plain_page

FIELD_CHARS = 200
MOST_DIGITS = 18
SHOWN = 100  # entries of the audit log
WRONG = "There is no such user with this password; check both."
Form = dict[str, str]
Handler = Callable[[Request, Form], Response]


def login_routes(accounts: Accounts, identity: Identity) -> list[Route]:
    """Logging in and out; only for an app with logins. The guard refuses forms of other sites."""

    def page(target: str, user: str = "", message: str = "", status: int = 200) -> Response:
        values = {"next": target, "user": user, "message": message}
        return plain_page("login", "Log in", None, status=status, **values)

    async def show(request: Request) -> Response:
        target = own_path(request.query_params.get("next", "/"))
        if _viewer(request).user is not None:
            return RedirectResponse(target, 303, NO_STORE)
        return page(target)

    async def sign_in(request: Request) -> Response:
        form = await _read_form(request)
        target, user = own_path(form.get("next", "/")), form.get("user", "")
        address = request.client.host if request.client else ""
        result = await identity.logins.verify(user, form.get("password", ""), address)
        if result.wait_s:
            sentence = f"Too many wrong logins; try again in {result.wait_s} s."
            answer = page(target, user, sentence, 429)
            answer.headers["Retry-After"] = str(result.wait_s)
            return answer
        if result.user is None:
            return page(target, user, WRONG, 401)
        try:
            token = await anyio.to_thread.run_sync(
                accounts.sign_in, result.user, limiter=identity.threads
            )
        except CkvError as error:
            return page(target, user, str(error), 503)
        if token is None:
            return page(target, user, DISABLED, 403)
        response = RedirectResponse(target, 303, NO_STORE)
        seconds = int(SESSION_LASTS.total_seconds())
        give_cookie(response, request, SESSION_COOKIE, token, seconds)
        return response

    def sign_out(_: Request) -> Response:
        accounts.sign_out()
        response = RedirectResponse(LOGIN_PATH, 303, NO_STORE)
        response.delete_cookie(SESSION_COOKIE)
        return response

    return [
        Route(LOGIN_PATH, show),
        Route(LOGIN_PATH, sign_in, methods=["POST"]),
        Route("/logout", sign_out, methods=["POST"]),
    ]


def account_routes(accounts: Accounts) -> list[Route]:
    """A user's own API tokens and sessions; only for an app with logins."""

    def page(request: Request, _: Form, *, token: str = "", message: str = "") -> Response:
        return plain_page(
            "account",
            "Account",
            _viewer(request),
            status=400 if message else 200,
            tokens=accounts.open("token"),
            sessions=accounts.open("session"),
            scopes={scope: name for name, scope in SCOPES.items()},
            expiries=list(EXPIRIES_DAYS),
            name_chars=NAME_CHARS,
            token=token,
            message=message,
        )

    def make(request: Request, form: Form) -> Response:
        given = (form.get(name, "") for name in ("name", "scope", "expiry"))
        try:
            return page(request, form, token=accounts.make_token(*given))
        except AccessError:
            raise
        except CkvError as error:
            return page(request, form, message=str(error))

    def revoke(_: Request, form: Form) -> Response:
        number = form.get("id", "")
        if number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS:
            accounts.revoke(int(number))
        return RedirectResponse("/account", 303, NO_STORE)

    return [
        _route("/account", page),
        _route("/account/tokens", make, "POST"),
        _route("/account/revoke", revoke, "POST"),
    ]


def admin_routes(administration: Administration, *, with_logins: bool) -> list[Route]:
    """What administrators see and do; the services refuse everybody else."""

    def page(request: Request, _: Form, message: str = "") -> Response:
        return plain_page(
            "admin",
            "Admin",
            _viewer(request),
            status=400 if message else 200,
            message=message,
            with_logins=with_logins,
            queue=administration.queue(),
            storage=administration.storage(),
            of_nobody=administration.count_of_nobody(),
            users=administration.users(),
            entries=administration.audit(SHOWN),
            shown=SHOWN,
        )

    def done(section: str, act: Callable[[Form], None]) -> Handler:
        def handle(request: Request, form: Form) -> Response:
            try:
                act(form)
            except (ConfigError, StorageError) as error:
                return page(request, form, str(error))
            return RedirectResponse(f"/admin#{section}", 303, NO_STORE)

        return handle

    def disable(form: Form) -> None:
        administration.set_disabled(form.get("user", ""), disabled=form.get("disable") == "1")

    cancel = done("queue", lambda form: administration.cancel(form.get("slug", "")[:FIELD_CHARS]))
    routes = [
        _route("/admin", page),
        _route("/admin/cancel", cancel, "POST"),
    ]
    of_users = [
        _route("/admin/users", done("users", disable), "POST"),
        _route("/admin/takeover", done("storage", lambda _: administration.take_over()), "POST"),
    ]
    return [*routes, *of_users] if with_logins else routes


def _route(path: str, handle: Handler, verb: str = "GET") -> Route:
    """A handler of a form, in a worker thread; what it refuses becomes a page that says why."""

    async def answer(request: Request) -> Response:
        form = await _read_form(request) if verb == "POST" else {}
        try:
            return await run_in_threadpool(handle, request, form)
        except CkvError as error:
            status, viewer = 403 if isinstance(error, AccessError) else 503, _viewer(request)
            return plain_page("refused", "Not possible", viewer, status=status, message=str(error))

    return Route(path, answer, methods=[verb])


def _viewer(request: Request) -> Viewer:
    viewer: Viewer = request.scope[SCOPE_KEY]
    return viewer


async def _read_form(request: Request) -> Form:
    """The texts of a form, of which the guard lets only small ones in."""
    fields = await request.form(max_files=0)
    return {name: value for name, value in fields.items() if isinstance(value, str)}
