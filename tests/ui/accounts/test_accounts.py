"""Logging in and out and API tokens over HTTP, against the whole app with logins."""

import time
from contextlib import ExitStack

import httpx
import pytest
from sqlalchemy import select, update
from starlette.applications import Starlette
from starlette.testclient import TestClient

from ckv_core.errors import CkvError
from ckv_core.records.run_request import RunRequest
from storage import audit
from storage.credentials import hash_token
from storage.models import Account, Credential
from tests.factories.app import (
    ENDLESS,
    end_of,
    finished,
    generating,
    request,
    script,
    store_run,
    wait_until,
)
from tests.factories.runs import done_result
from tests.ui.served_app import Served, by
from ui.accounts.credentials import DISABLED
from ui.runs.page import HIDDEN, RunsPage
from ui.server.identity import SESSION_COOKIE, Identity, own_path
from ui.shell.account_routes import WRONG, login_routes
from ui.users import HASHER, User

READER = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture(autouse=True)
def everybody_is_in(app):
    yield
    with app.services._database.write() as session:
        session.execute(update(Account).values(disabled_at=None))


@pytest.fixture
def sign_in(app):
    """Logs in on the page; a client that has the session, and the answer."""
    with ExitStack() as stack:

        def sign_in(user="ann", password="", target="/"):
            client = stack.enter_context(app.client())
            form = {"user": user, "password": password or f"{user}-secret", "next": target}
            return client, client.post("/login", data=form)

        yield sign_in


def stored(app: Served) -> list[dict]:
    with app.services._database.read() as session:
        return [dict(row) for row in session.execute(select(Credential.__table__)).mappings()]


def test_the_login_page_opens_a_session_that_log_out_ends_on_the_server(app, sign_in):
    client, answer = sign_in(target="/runs?tag=x")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs?tag=x")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "secure" not in cookie
    token = client.cookies[SESSION_COOKIE]
    assert len(token) == 43  # 32 bytes
    assert token not in str(stored(app))
    assert hash_token(token) in str(stored(app))
    assert client.get("/api/runs").status_code == 200
    assert "ann" in client.get("/", headers=READER).text
    out = client.post("/logout")
    assert (out.status_code, out.headers["location"]) == (303, "/login")
    with app.client(cookies={SESSION_COOKIE: token}) as thief:
        assert thief.get("/api/runs").status_code == 401


def test_over_https_the_cookie_is_secure(app):
    services = app.services
    identity = Identity(services.users, services.accounts, services.shares)
    routes = login_routes(services.accounts, identity)
    client = TestClient(Starlette(routes=routes), "https://lab.example", follow_redirects=False)
    answer = client.post("/login", data={"user": "ann", "password": "ann-secret"})
    assert "secure" in answer.headers["set-cookie"].lower()


def test_pages_lead_to_the_login_and_programs_get_a_401(app):
    with app.client() as nobody:
        page = nobody.get("/runs?tag=a&text=b", headers=READER)
        assert page.status_code == 303
        assert page.headers["location"] == "/login?next=%2Fruns%3Ftag%3Da%26text%3Db"
        shown = nobody.get(page.headers["location"])
        assert 'value="/runs?tag=a&amp;text=b"' in shown.text
        assert nobody.get("/runs").headers["www-authenticate"] == "Bearer"
        script = {**READER, "sec-fetch-mode": "cors", "sec-fetch-site": "same-origin"}
        refused = nobody.get("/data/abc123def456/prompt", headers=script)
        assert refused.status_code == 401
        assert nobody.get("/api/runs", headers=READER).status_code == 401


def test_the_login_leads_to_no_other_site(sign_in):
    for path in ("/", "/run?id=abc&a=b#c", "/runs?text=%2F%2Fx"):
        assert own_path(path) == path
    evil = ("https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil", "javascript:x")
    assert {own_path(target) for target in (*evil, "")} == {"/"}
    _, answer = sign_in(target=evil[1])
    assert answer.headers["location"] == "/"


def test_wrong_passwords_are_one_sentence_and_then_a_wait(app, sign_in):
    for user in ("eve", "ann"):
        _, answer = sign_in(user, "wrong")
        assert (answer.status_code, WRONG in answer.text) == (401, True)
        assert "set-cookie" not in answer.headers
    _, hostile = sign_in("<b>'\"", "wrong")
    assert "<b>'" not in hostile.text
    # A slow machine may take longer for a guess than the first waits last; each wait is longer.
    for number in range(40):
        _, answer = sign_in(f"mallory {number}", "wrong")
        if answer.status_code == 429:
            break
    assert (answer.status_code, "again in" in answer.text) == (429, True)
    time.sleep(int(answer.headers["retry-after"]) + 0.1)
    assert sign_in()[1].status_code == 303


def test_a_form_of_another_site_logs_nobody_in_or_out(app, sign_in):
    client, _ = sign_in()
    for path, form in (("/login", {"user": "ann", "password": "ann-secret"}), ("/logout", {})):
        answer = client.post(path, data=form, headers={"origin": "https://evil.example"})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    assert client.get("/api/runs").status_code == 200


def disable(app: Served, user: str) -> None:
    with by("root", is_admin=True):
        assert app.services.administration.set_disabled(user, disabled=True)


def test_a_disabled_user_is_out_at_once_whatever_was_shown(app, sign_in):
    client, _ = sign_in("bob")
    with by("bob"):
        token = app.services.accounts.make_token("t", "Read", "7 days")
    bearer = {"authorization": f"Bearer {token}"}
    with app.client() as program:
        for each, headers in ((client, {}), (program, bearer)):
            assert each.get("/api/runs", headers=headers).status_code == 200
        disable(app, "bob")
        for each, headers in ((client, {}), (program, bearer)):
            assert each.get("/api/runs", headers=headers).status_code == 401
    _, answer = sign_in("bob")
    assert (answer.status_code, DISABLED in answer.text) == (403, True)


def test_a_removed_user_and_a_changed_password_end_sessions(app, sign_in, monkeypatch):
    client, _ = sign_in("bob")
    users = app.services._access.users
    with monkeypatch.context() as patched:
        patched.delitem(users, "bob")
        assert client.get("/api/runs").status_code == 401
    assert client.get("/api/runs").status_code == 200
    monkeypatch.setitem(users, "bob", User(HASHER.hash("another")))
    assert client.get("/api/runs").status_code == 401


def test_a_stream_ends_with_its_login(app, sign_in, monkeypatch):
    monkeypatch.setattr(app.services.administration, "_stop", lambda *_: None)
    with by("bob"):
        slug = app.services.start_run(script(ENDLESS))
        wait_until(app.services, slug, generating)
    client, _ = sign_in("bob")
    body = {"data": [slug, ""], "fn_index": app.handler("RunPage.tail"), "session_hash": "stream1"}
    client.post("/gradio_api/queue/join", json=body).raise_for_status()
    with client.stream("GET", "/gradio_api/queue/data?session_hash=stream1") as stream:
        lines = stream.iter_lines()
        assert "data" in next(lines)
        disable(app, "bob")
        for _ in lines:
            pass  # it ends: the run itself goes on for a million steps
    with by("bob"):
        assert not app.services.snapshot(slug).is_final
        app.services.cancel_run(slug)


# --- API tokens -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slug(app) -> str:
    with by("ann"):
        return finished(app.services, "steps 2")


def program(app: Served, scope: str, user: str = "ann") -> httpx.Client:
    with by(user):
        token = app.services.accounts.make_token("script", scope, "7 days")
    return app.client(headers={"authorization": f"Bearer {token}"})


def test_a_token_is_a_login_for_programs_and_no_more(app, slug):
    with program(app, "Read and write") as script:
        assert script.get(f"/api/runs/{slug}").status_code == 200
        started = script.post("/api/runs", json={"context": "one two", "question": "steps 1"})
        assert started.status_code == 202
        for path in ("/account", "/admin"):
            assert script.get(path).status_code == 403
        made = script.post("/account/tokens", data={"name": "more", "scope": "Read"})
        assert made.status_code == 403
    with program(app, "Read", "bob") as script:
        assert script.get(f"/api/runs/{slug}").status_code == 404


def test_what_is_no_token_opens_nothing(app, sign_in):
    with app.client() as nobody:
        for header in ("Bearer", "Bearer ckv_", "Bearer ckv_" + "x" * 43, "Bearer é"):
            answer = nobody.get("/api/runs", headers={"authorization": header.encode()})
            assert answer.status_code == 401
    client, _ = sign_in()
    as_token = {"authorization": f"Bearer {client.cookies[SESSION_COOKIE]}"}
    with app.client() as thief:
        assert thief.get("/api/runs", headers=as_token).status_code == 401


# --- the administrator's page and the audit log ---------------------------------------------


def entries(app: Served, target: str = "") -> list[tuple[str | None, str, str]]:
    with by("root", is_admin=True):
        found = app.services.administration.audit(1000)
    of = [each for each in reversed(found) if target in ("", each.target)]
    return [(each.actor, each.action, each.target) for each in of]


def test_the_audit_log_tells_who_did_what_and_no_text(app, sign_in):
    with by("ann"):
        made = finished(app.services, "steps 1")
        app.services.shares.create(made, "1 day")
        assert app.services.shares.revoke(made, app.services.shares.of_run(made)[0].id)
        bundle = app.services.export_bundle([made])
        with pytest.raises(CkvError):  # which leaves no entry
            app.services.library.delete([made, "zzz999zzz999"])
        app.services.library.delete([made])
        assert app.services.library.restore([made]) == 1
    with by("bob"):
        (copy,) = app.services.import_bundle(bundle).imported
    acts = ("shared", "revoked share", "exported", "deleted", "restored")
    assert entries(app, target=made) == [("ann", act, made) for act in acts]
    assert entries(app, target=copy) == [("bob", "imported", copy)]
    sign_in("hunter2", "wrong")
    assert entries(app)[-1] == (None, "failed to sign in", "")
    assert "hunter2" not in str(entries(app))
    assert "steps 1" not in str(entries(app))


def test_the_log_is_bounded(app, monkeypatch):
    monkeypatch.setattr(audit, "KEPT_ENTRIES", 3)
    with app.services._database.write() as session:
        for number in range(9):
            audit.record(session, "ann", "exported", f"run{number}")
    assert [target for _, _, target in entries(app)] == ["run6", "run7", "run8"]


def test_administrators_see_the_queue_cancel_and_read_no_text(app, monkeypatch):
    with by("ann"):
        slug = app.services.start_run(script(ENDLESS))
        wait_until(app.services, slug, generating)
    with app.client("root") as root, app.client("ann") as ann:
        assert ann.get("/admin").status_code == 403
        page = root.get("/admin").text
        assert slug in page
        assert ENDLESS not in page
        assert root.get(f"/data/{slug}/prompt").status_code == 404
        assert ann.post("/admin/cancel", data={"slug": slug}).status_code == 403
        assert root.post("/admin/cancel", data={"slug": slug}).status_code == 303
        with by("ann"):
            assert end_of(app.services, slug).state == "cancelled"
        assert entries(app, target=slug) == [("root", "cancelled", slug)]
        monkeypatch.setattr(app.services._runs, "_begin_turns", lambda: None)
        made = RunRequest(name="s", data={"file": "x"}, variants=("h2o",), budgets=("9%",))
        study = app.services.studies._store.save(made, (), "ann")
        app.services.studies._store.want(study)
        assert f'aria-label="Cancel {study}"' in root.get("/admin").text
        assert ann.post("/admin/cancel", data={"slug": study}).status_code == 403
        assert root.post("/admin/cancel", data={"slug": study}).status_code == 303
        assert f'aria-label="Cancel {study}"' not in root.get("/admin").text
        assert entries(app, target=study) == [("root", "cancelled", study)]
        assert root.post("/admin/users", data={"user": "bob", "disable": "1"}).status_code == 303
        assert "disabled" in root.get("/admin").text
        own = root.post("/admin/users", data={"user": "root", "disable": "1"})
        assert (own.status_code, "yourself" in own.text) == (400, True)


def test_an_administrator_takes_over_what_was_made_without_logins(app):
    services, without = app.services, store_run(app.services, request(), done_result())
    named = [RunRequest(name="s", data={"file": "x"}, variants=("h2o",), budgets=("9%",))] * 2
    study, own = (
        services.studies._store.save(each, (), owner)
        for each, owner in zip(named, (None, "root"), strict=True)
    )
    with app.client("root") as root, app.client("bob") as bob:
        with by("bob"):
            runs, _ = services.library.list_runs()
            assert without not in [run.slug for run in runs]
            page = RunsPage.__new__(RunsPage)
            page._library, page._import_mib = services.library, 1
            services.library.delete([run.slug for run in runs])
            assert page._view({})["message"] == HIDDEN
            assert page._view({"text": "x"})["message"] == ""
        assert bob.post("/admin/takeover").status_code == 403
        assert 'action="/admin/takeover"' in root.get("/admin").text
        assert root.post("/admin/takeover").status_code == 303
        assert 'action="/admin/takeover"' not in root.get("/admin").text
        assert root.get(f"/data/{without}/prompt").status_code == 200
        assert bob.get(f"/data/{without}/prompt").status_code == 404
    with by("root", is_admin=True):
        assert services.library.summary(own).title == "s"
        assert services.view(study).title == f"s {study}"
        assert not services.library.are_runs_of_nobody()
    assert ("root", "took over", "root") in entries(app)
