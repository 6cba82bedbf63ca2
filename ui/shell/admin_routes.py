"""Routes of /admin: queue, storage, users and the audit log, and its CSV."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ckv_core.errors import ConfigError, StorageError
from storage.audit import ACTIONS, KEPT_ENTRIES, AuditFilter
from ui.accounts.administration import Administration, audit_csv_text
from ui.server.route_answers import NO_STORE
from ui.shell.account_routes import refusing
from ui.shell.login_routes import read_form
from ui.shell.plain_pages import plain_page, viewer_of

PATH = "/admin"
SHOWN = 100
FIELD_CHARS = 200


def admin_routes(administration: Administration, *, with_logins: bool) -> list[Route]:
    """All. The guard refuses forms of other sites, the services whoever is no administrator."""

    def page(request: Request, told: str = "") -> Response:
        viewer = viewer_of(request)
        wanted = _wanted(request)
        return plain_page(
            "admin",
            "Admin",
            viewer,
            status=400 if told else 200,
            told=told,
            user=viewer.user,
            with_logins=with_logins,
            queue=administration.queue(),
            storage=administration.storage(),
            users=administration.users(),
            entries=administration.audit(wanted, SHOWN),
            shown=SHOWN,
            actions=ACTIONS,
            wanted=wanted,
            since=f"{wanted.since:%Y-%m-%d}" if wanted.since else "",
            query=urlencode(dict(request.query_params)),
        )

    async def show(request: Request) -> Response:
        return await run_in_threadpool(page, request)

    async def cancel(request: Request) -> Response:
        slug = (await read_form(request)).get("slug", "")[:FIELD_CHARS]
        return await done(request, "queue", partial(administration.cancel, slug))

    async def disable(request: Request) -> Response:
        form = await read_form(request)
        name, disabled = form.get("user", ""), form.get("disable") == "1"
        change = partial(administration.set_disabled, name, disabled=disabled)
        return await done(request, "users", change)

    async def done(request: Request, section: str, act: Callable[[], object]) -> Response:
        try:
            await run_in_threadpool(act)
        except (ConfigError, StorageError) as error:
            return await run_in_threadpool(page, request, str(error))
        return RedirectResponse(f"{PATH}#{section}", 303, NO_STORE)

    async def audit_csv(request: Request) -> Response:
        found = await run_in_threadpool(administration.audit, _wanted(request), KEPT_ENTRIES)
        headers = {**NO_STORE, "Content-Disposition": 'attachment; filename="ckv-audit.csv"'}
        return Response(
            audit_csv_text(found), headers=headers, media_type="text/csv; charset=utf-8"
        )

    routes = [
        Route(PATH, refusing(show)),
        Route(f"{PATH}/cancel", refusing(cancel), methods=["POST"]),
        Route(f"{PATH}/audit.csv", refusing(audit_csv)),
    ]
    if with_logins:
        routes.append(Route(f"{PATH}/users", refusing(disable), methods=["POST"]))
    return routes


def _wanted(request: Request) -> AuditFilter:
    """The filter of an address, which may hold anything."""
    given = {name: text.strip()[:FIELD_CHARS] for name, text in request.query_params.items()}
    action = given.get("action", "")
    try:
        since = datetime.strptime(given.get("since", ""), "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        since = None
    return AuditFilter(
        actor=given.get("actor", ""),
        action=action if action in ACTIONS else "",
        target=given.get("target", ""),
        since=since,
    )
