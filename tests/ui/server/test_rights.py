"""Who may call which handler and which address: all of them are walked, and a new one fails."""

import asyncio
import re
from contextlib import nullcontext
from types import SimpleNamespace

import gradio as gr
import pytest
from starlette.routing import Mount, Route

from ui.accounts.access import LOGIN_NEEDED, SCOPE_KEY, Viewer
from ui.accounts.turns import LINE_KEY, Turns
from ui.server.identity import _refusal
from ui.server.private import guard_handlers, handler_name
from ui.server.rules import RULES, rule_of

SHARED = "abc123def456"  # as `every_route` names runs
VIEWERS = {
    "guest": Viewer(shared=frozenset({SHARED})),
    "stranger": Viewer(),
    "other user": Viewer(user="bob"),
    "reader token": Viewer(user="ann", scope="read", credential=1),
    "administrator": Viewer(user="root", is_admin=True),
}
# What each does to a run or a study asks ui/accounts/access.py; tests/ui/services/test_limits.py.
FOR_GUESTS = {
    *("RunPage.open", "RunPage.tail", "SweepArea.wire.<locals>.reading.<locals>.handler"),
}  # fmt: skip
FOR_USERS = {
    *(f"ComparePage.{name}" for name in ("count", "describe", "open", "start", "stop_loading")),
    *(f"ComparePage.{name}" for name in ("warm", "watch_model", "fill_example", "link_setup")),
    *(f"Api.{name}" for name in ("cancel", "compare", "export_run", "get_run", "list_runs")),
    *("Api.list_methods", "Api.list_models"),
    *("cancel_run", "searching.<locals>.find"),
    *("add_ablation", "Capacity.open", "Capacity.compute"),
    *("RunsPage.open", "RunsPage.act", "SeveralPage.open"),
    *("ShareSection.issue", "ShareSection.revoke"),
    *("KeepSection.keep", "KeepSection.tail", "KeepSection.stop"),
    "shown_areas",
    *("RunPage.go_on", "RunPage.open_one", "ComparePage.price"),
    *(f"CachesPage.{name}" for name in ("open", "refresh", "choose", "ask", "tail", "stop")),
    *("CachesPage.ask_whether", "CachesPage.delete"),
    "CachesPage.wire.<locals>.<lambda>",
}  # fmt: skip


def every_route(routes, prefix="") -> list[tuple[str, str]]:
    """Method and an address for each route of the table, mounted and included ones too."""
    found = []
    for route in routes:
        inner = getattr(route, "routes", None) or getattr(
            getattr(route, "original_router", None), "routes", None
        )
        path = prefix + getattr(route, "path", "")
        if isinstance(route, Mount) or (inner and not isinstance(route, Route)):
            found += every_route(inner or [], path if isinstance(route, Mount) else prefix)
            continue
        path = re.sub(r"\{[^}]*:int\}", "0", path)
        path = re.sub(r"\{[^}]*\}", "abc123def456", path)
        found += [(method, path) for method in sorted(getattr(route, "methods", None) or {"GET"})]
    return found


def handlers(app):
    return {handler_name(fn.fn): fn for fn in app.blocks.fns.values() if fn.fn is not None}


def test_every_handler_is_listed(app):
    assert handlers(app).keys() == FOR_GUESTS | FOR_USERS


@pytest.mark.parametrize("name", VIEWERS)
def test_guests_and_strangers_reach_only_the_handlers_of_a_shared_run(app, name):
    reached, viewer, turns = set(), VIEWERS[name], Turns()

    async def call(fn, *_):
        reached.add(handler_name(fn.fn))

    queue = SimpleNamespace(clean_events=None)
    blocks = SimpleNamespace(fns=app.blocks.fns, call_function=call, _queue=queue)
    guard_handlers(blocks, turns)
    scope = {SCOPE_KEY: viewer, LINE_KEY: turns.line(viewer, "10.0.0.1")}
    request = SimpleNamespace(request=SimpleNamespace(scope=scope), session_hash="one")

    async def call_all():
        for fn in handlers(app).values():
            is_open = viewer.user is not None or handler_name(fn.fn) in FOR_GUESTS
            refused = nullcontext() if is_open else pytest.raises(gr.Error, match=LOGIN_NEEDED)
            with refused:
                await blocks.call_function(fn, [], None, request)

    asyncio.run(call_all())
    assert reached == (FOR_GUESTS if viewer.user is None else FOR_GUESTS | FOR_USERS)


# Addresses that a share link opens beside those of the run's own data, /data/... and /studies/....
GUESTS_MAY = {
    "/r/" + SHARED, "/run", "/study", "/config", "/manifest.json", "/plotly.js",
    "/scripts/" + SHARED + "/" + SHARED, "/svelte/" + SHARED, "/static/" + SHARED,
    "/assets/" + SHARED, "/gradio_api/theme.css", "/gradio_api/app_id", "/gradio_api/queue/join",
    "/gradio_api/queue/data", "/gradio_api/cancel", "/gradio_api/reset",
    "/gradio_api/heartbeat/" + SHARED,
}  # fmt: skip
ALL_MAY = {
    "/healthz", "/login", "/theme.css", "/favicon.ico", "/s/" + SHARED,
    "/gradio_api/startup-events",
}  # fmt: skip
READERS_MAY_NOT = {
    ("POST", path)
    for path in (
        "/login", "/login/", "/logout", "/account/tokens", "/account/revoke", "/admin/cancel",
        "/admin/takeover", "/admin/users",
        "/caches/import", "/documents/text", "/runs/import", "/api/runs",
        f"/api/runs/{SHARED}/cancel", f"/data/{SHARED}/preview", f"/data/{SHARED}/fork",
        f"/data/{SHARED}/why",
    )
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWERS)
def test_what_each_viewer_may_ask_by_its_address(app, name):
    viewer, table = VIEWERS[name], every_route(app.routes)
    assert len(table) > 60, "the table was not walked"
    passed = set()
    for method, path in table:
        scope = {"method": method, "path": path, "query_string": b"", "headers": []}
        if _refusal(scope, viewer) is None:
            passed.add((method, path))
    if viewer.user is None:
        own = (f"/data/{SHARED}/", f"/studies/{SHARED}/")
        others = {path for _, path in passed if not path.startswith(own)}
        assert others == ALL_MAY | (GUESTS_MAY if viewer.shared else set())
    else:
        refused = set(table) - passed
        assert refused == (READERS_MAY_NOT if viewer.scope == "read" else set())


def test_anonymous_access_to_every_route_is_refused(app):
    table = every_route(app.routes)
    answers = {}
    with app.client() as nobody:
        for method, path in table:
            if rule_of(path).who == "anyone":
                continue
            answer = nobody.request(method, path)
            refused = answer.status_code == (403 if rule_of(path).who == "nobody" else 401)
            if not refused:
                answers[method, path] = answer.status_code
            assert "ckv" not in answer.text.lower(), path
    assert answers == {}


def test_every_address_that_has_a_rule_exists(app):
    known = {path for _, path in every_route(app.routes)}
    named = {path for path in RULES if "*" not in path}
    assert named - {"/gradio_api/run/predict"} <= known
