"""Owners and share links over HTTP, against the whole app with logins."""

import asyncio
import inspect
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from sqlalchemy import select, update

from ckv_core.errors import CkvError
from storage import shares
from storage.models import ShareLink
from storage.repository import RunMissingError
from tests.ui.report_reading import opened
from tests.ui.scripted_services import end_of, request
from tests.ui.served_app import Served, by, served
from ui.access import AccessError, Viewer, acting_as
from ui.library import Library
from ui.services import Services
from ui.shares import EXPIRIES_DAYS, OPEN_LINKS, Shares

LATER = timedelta(days=400)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with served(tmp_path_factory.mktemp("shares")) as app:
        yield app


@pytest.fixture(scope="module")
def slug(app: Served) -> str:
    with by("ann"):
        slug = app.services.start_run(request("steps 2"))
        end_of(app.services, slug)
    return slug


@pytest.fixture(scope="module")
def other(app: Served) -> str:
    with by("ann"):
        slug = app.services.start_run(request("steps 1"))
        end_of(app.services, slug)
    return slug


def link(app: Served, slug: str, expiry: str = "7 days") -> str:
    with by("ann"):
        return app.services.shares.create(slug, expiry)


def holder(app: Served, token: str) -> httpx.Client:
    """Somebody without a login who opened a share link."""
    with app.client() as first:
        answer = first.get(f"/s/{token}")
    assert answer.status_code == 303, answer.text
    return app.client(cookies=dict(answer.cookies))


def change_link(app: Served, token: str, **values) -> None:
    statement = update(ShareLink).where(ShareLink.token_hash == shares._hash(token))
    with app.services._database.write() as session:
        session.execute(statement.values(**values))


# --- owners ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail",
    ["prompt", "result.json", "table.csv", "0/retained", "report.html", "llm_comparator.json"],
)
def test_another_users_run_answers_like_a_missing_one(app, slug, tail):
    with app.client("bob") as bob:
        theirs = bob.get(f"/data/{slug}/{tail}")
        missing = bob.get(f"/data/zzz999zzz999/{tail}")
    assert (theirs.status_code, theirs.text) == (missing.status_code, missing.text)
    assert theirs.status_code == 404


def test_the_owner_gets_the_data(app, slug):
    with app.client("ann") as ann:
        assert ann.get(f"/data/{slug}/prompt").json()["tokens"] == 3


def test_no_queued_handler_follows_another_users_run(app, slug):
    with app.client("ann") as ann, app.client("bob") as bob:
        assert "3 prompt tokens" in str(app.queued(ann, "RunPage.tail", slug))
        theirs = app.queued(bob, "RunPage.tail", slug)
    assert "prompt tokens" not in str(theirs)


def arguments(method, slug: str) -> dict[str, object]:
    """Something for each required argument; the run for whatever names runs."""
    values = {
        "slug": slug, "slugs": [slug], "index": 0, "expiry": "7 days", "share_id": 1,
        "title": "t", "note": "n", "tags": [], "tag": "t", "pinned": True,
    }  # fmt: skip
    wanted = inspect.signature(method).parameters.values()
    return {p.name: values[p.name] for p in wanted if p.default is p.empty}


OF_A_RUN = [
    (owner, name)
    for owner in (Services, Shares, Library)
    for name, method in inspect.getmembers(owner, inspect.isfunction)
    if not name.startswith("_") and {"slug", "slugs"} & inspect.signature(method).parameters.keys()
]


@pytest.mark.parametrize("name", [f"{owner.__name__}.{name}" for owner, name in OF_A_RUN])
@pytest.mark.parametrize(
    "viewer", [Viewer(user="bob"), Viewer(), None], ids=["bob", "nobody", "unknown"]
)
def test_every_service_method_of_a_run_refuses_strangers(app, slug, name, viewer):
    kind, _, method_name = name.partition(".")
    parts = {
        "Services": app.services,
        "Shares": app.services.shares,
        "Library": app.services.library,
    }
    method = getattr(parts[kind], method_name)

    async def first(views):
        return await anext(views)

    def use():
        made = method(**arguments(method, slug))
        return asyncio.run(first(made)) if inspect.isasyncgen(made) else made

    with acting_as(viewer):
        if name == "Services.may_change":
            assert use() is False
        elif name == "Library.restore" and viewer == Viewer(user="bob"):
            assert use() == 0
        else:
            with pytest.raises((RunMissingError, AccessError)):
                use()
    with by("ann"):
        assert app.services.snapshot(slug).title == "steps 2"


OPEN_TO_ALL = {"close", "count_by_state", "live_states", "opened", "purge", "slugs"}


def test_every_other_service_method_needs_a_login(app):
    checked = []
    parts = (app.services, app.services.shares, app.services.library)
    for part in parts:
        for name, method in inspect.getmembers(part, inspect.ismethod):
            parameters = inspect.signature(method).parameters
            if name.startswith("_") or {"slug", "slugs"} & parameters.keys() or name in OPEN_TO_ALL:
                continue
            given = {"request": request("steps 1"), "model": "tiny", "data": b""}
            needed = {p.name: given[p.name] for p in parameters.values() if p.default is p.empty}
            with acting_as(Viewer(shared=frozenset({"abc"}))), pytest.raises(AccessError):
                method(**needed)
            checked.append(name)
    assert {"start_run", "list_runs", "warm", "count_tokens", "model_status"} <= set(checked)


def test_a_bundle_of_another_users_run_becomes_the_importers_own(app, slug):
    with by("ann"):
        bundle = app.services.export_bundle([slug])
        assert app.services.import_bundle(bundle).skipped == [slug]
    with by("bob"):
        (made,) = app.services.import_bundle(bundle).imported
        assert made != slug
        assert app.services.snapshot(made).title == "steps 2"
        app.services.library.delete([made])


def test_a_user_lists_only_own_runs(app, slug):
    with by("bob"):
        assert app.services.library.list_runs() == ([], 0)
    with by("ann"):
        assert slug in [run.slug for run in app.services.library.list_runs()[0]]


# --- links ----------------------------------------------------------------------------------


def test_a_share_link_shows_one_run_and_nothing_else(app, slug, other):
    with holder(app, link(app, slug)) as client:
        assert client.get("/run", params={"id": slug}).status_code == 200
        assert client.get(f"/data/{slug}/prompt").status_code == 200
        assert client.get(f"/data/{slug}/result.json").status_code == 200
        assert "3 prompt tokens" in str(app.queued(client, "RunPage.tail", slug))
        assert client.get(f"/data/{other}/prompt").status_code == 401
        for path in ("/", "/runs", "/methods", "/sweep", "/aggregate", "/metrics", "/nothing"):
            assert client.get(path).status_code == 401, path
        assert "prompt tokens" not in str(app.queued(client, "RunPage.tail", other))


def test_a_share_link_gives_the_report_without_the_owners_note(app, slug):
    address = f"/data/{slug}/report.html?without=charts,kept"
    with by("ann"):
        app.services.library.annotate(slug, "steps 2", "for my eyes", ["mine"])
    with holder(app, link(app, slug)) as client:
        assert "for my eyes" not in opened(client.get(address).content).files["page"].decode()
    with app.client("ann") as client:
        assert "for my eyes" in opened(client.get(address).content).files["page"].decode()


def test_a_share_link_starts_changes_and_lists_nothing(app, slug):
    with holder(app, link(app, slug)) as client:
        for name in ("RunsPage.open", "ComparePage.warm"):
            assert slug not in app.call(client, name, "tiny").text
        app.call(client, "cancel_run", slug)
        app.call(client, "ShareSection.issue", slug, event_data={"expiry": "Never"})
        viewer = Viewer(shared=frozenset({slug}))
    with acting_as(viewer):
        assert app.services.snapshot(slug).slug == slug
        for change in (app.services.cancel_run, app.services.shares.of_run):
            with pytest.raises(RunMissingError):
                change(slug)
        with pytest.raises(AccessError):
            app.services.start_run(request("steps 1"))


def test_wrong_expired_and_revoked_links_look_alike(app, slug):
    expired, revoked = link(app, slug), link(app, slug)
    change_link(app, expired, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    change_link(app, revoked, revoked_at=datetime.now(UTC))
    with app.client() as client:
        answers = [client.get(f"/s/{token}") for token in ("wrong", "x" * 43, expired, revoked)]
    seen = {(a.status_code, a.text, a.headers.get("set-cookie")) for a in answers}
    assert len(seen) == 1
    assert answers[0].status_code == 404


def test_a_revoked_link_shuts_out_who_has_opened_it(app, slug):
    token = link(app, slug)
    with holder(app, token) as client:
        assert client.get(f"/data/{slug}/prompt").status_code == 200
        with by("ann"):
            newest = app.services.shares.of_run(slug)[0]
            assert app.services.shares.revoke(slug, newest.id)
            assert not app.services.shares.revoke(slug, newest.id)
        assert client.get(f"/data/{slug}/prompt").status_code == 401


def test_a_token_in_another_runs_cookie_opens_neither(app, slug, other):
    token = link(app, slug)
    with app.client(cookies={f"ckv_share_{other}": token}) as client:
        assert client.get(f"/data/{other}/prompt").status_code == 401
        assert client.get(f"/data/{slug}/prompt").status_code == 401


def test_a_link_of_one_run_is_not_revoked_through_another(app, slug, other):
    link(app, slug)
    with by("ann"):
        newest = app.services.shares.of_run(slug)[0]
        assert not app.services.shares.revoke(other, newest.id)
        assert app.services.shares.of_run(slug)[0].revoked_at is None


def test_only_the_hash_of_a_token_is_stored(app, slug):
    token = link(app, slug)
    with app.services._database.read() as session:
        rows = [dict(row) for row in session.execute(select(ShareLink.__table__)).mappings()]
    assert len(token) == 43  # 32 bytes
    assert token not in str(rows)
    assert shares._hash(token) in str(rows)


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(app, slug):
    with app.client() as client:
        cookie = client.get(f"/s/{link(app, slug)}").headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie


@pytest.mark.parametrize("expiry", EXPIRIES_DAYS)
def test_a_link_lasts_as_long_as_was_chosen(app, other, expiry):
    token = link(app, other, expiry)
    days = EXPIRIES_DAYS[expiry]
    with app.services._database.read() as session:
        now = datetime.now(UTC)
        if days is None:
            assert shares.shared_slug(session, token, now + LATER) == other
        else:
            assert shares.shared_slug(session, token, now + timedelta(days=days, hours=-1)) == other
            assert shares.shared_slug(session, token, now + timedelta(days=days)) is None


def test_a_run_takes_so_many_open_links_and_no_more(app):
    with by("bob"):
        slug = app.services.start_run(request("steps 1"))
        end_of(app.services, slug)
        for _ in range(OPEN_LINKS):
            app.services.shares.create(slug, "1 day")
        with pytest.raises(CkvError, match="revoke one"):
            app.services.shares.create(slug, "1 day")
        with pytest.raises(CkvError, match="how long"):
            app.services.shares.create(slug, "forever")


def test_a_deleted_run_takes_its_links_along(app):
    with by("ann"):
        slug = app.services.start_run(request("steps 1"))
        end_of(app.services, slug)
        token = app.services.shares.create(slug, "Never")
        app.services.library.delete([slug])
    with app.client() as client:
        assert client.get(f"/s/{token}").status_code == 404
