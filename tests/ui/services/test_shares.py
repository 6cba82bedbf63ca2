"""Share links over HTTP, against the whole app with logins."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from sqlalchemy import update

from ckv_core.errors import CkvError
from storage import credentials, repository
from storage.credentials import hash_token
from storage.models import Credential
from tests.factories.app import STUDY, finished, study_results, study_samples
from tests.ui.report_reading import opened
from tests.ui.served_app import Served, by
from ui.services.library import EXPIRIES_DAYS, OPEN_LINKS

LATER = timedelta(days=400)


@pytest.fixture(scope="module")
def slug(app) -> str:
    with by("ann"):
        return finished(app.services, "steps 2")


@pytest.fixture(scope="module")
def other(app) -> str:
    with by("ann"):
        return finished(app.services, "steps 1")


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
    statement = update(Credential).where(Credential.token_hash == hash_token(token))
    with app.services._database.write() as session:
        session.execute(statement.values(**values))


def test_a_share_link_shows_one_run_and_nothing_else(app, slug, other):
    with holder(app, link(app, slug)) as client:
        assert client.get("/run", params={"id": slug}).status_code == 200
        assert client.get(f"/data/{slug}/prompt").status_code == 200
        assert client.get(f"/data/{slug}/result.json").status_code == 200
        assert slug in str(app.queued(client, "RunPage.tail", slug, ""))
        assert client.get(f"/data/{other}/prompt").status_code == 401
        for path in ("/", "/runs", "/methods", "/several", "/nothing"):
            assert client.get(path).status_code == 401, path
        assert other not in str(app.queued(client, "RunPage.tail", other, ""))


def test_a_share_link_gives_the_report_without_the_owners_note(app, slug):
    address = f"/data/{slug}/report.html"
    with by("ann"):
        app.services.library.annotate(slug, "steps 2", "for my eyes")
    with holder(app, link(app, slug)) as client:
        assert "for my eyes" not in opened(client.get(address).content).files["page"].decode()
    with app.client("ann") as client:
        assert "for my eyes" in opened(client.get(address).content).files["page"].decode()


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


@pytest.mark.parametrize("expiry", EXPIRIES_DAYS)
def test_a_link_lasts_as_long_as_was_chosen(app, other, expiry):
    token = link(app, other, expiry)
    days = EXPIRIES_DAYS[expiry]
    with app.services._database.read() as session:
        now = datetime.now(UTC)
        if days is None:
            assert credentials.shared_slug(session, token, now + LATER) == other
        else:
            assert (
                credentials.shared_slug(session, token, now + timedelta(days=days, hours=-1))
                == other
            )
            assert credentials.shared_slug(session, token, now + timedelta(days=days)) is None


def test_a_run_takes_so_many_open_links_and_no_more(app):
    with by("bob"):
        slug = finished(app.services, "steps 1")
        for _ in range(OPEN_LINKS):
            app.services.shares.create(slug, "1 day")
        with pytest.raises(CkvError, match="revoke one"):
            app.services.shares.create(slug, "1 day")
        with pytest.raises(CkvError, match="when the link expires"):
            app.services.shares.create(slug, "forever")


def test_a_deleted_run_takes_its_links_along(app):
    with by("ann"):
        slug = finished(app.services, "steps 1")
        token = app.services.shares.create(slug, "never")
        app.services.library.delete([slug])
    with app.client() as client:
        assert client.get(f"/s/{token}").status_code == 404


def test_a_link_of_a_run_of_many_samples_opens_that_one_alone(app):
    store, samples = app.services.studies._store, study_samples(3)
    shared, hidden = (store.save(replace(STUDY, name=name), samples, "ann") for name in "ab")
    store.commit(shared, study_results(samples))
    token = link(app, shared)
    with app.client(follow_redirects=True) as guest:
        first = guest.get(f"/s/{token}")
        assert (first.status_code, first.url.path) == (200, "/run")
        for name in ("study.json", "scores.csv", "figure/budget", "report.html"):
            assert guest.get(f"/studies/{shared}/{name}").status_code == 200, name
            assert guest.get(f"/studies/{hidden}/{name}").status_code == 401, name
        assert guest.get(f"/run?id={hidden}").status_code == 404
        assert "21 of 21 results" in str(app.queued(guest, "RunPage.tail", shared, ""))
        assert "results" not in str(app.queued(guest, "RunPage.tail", hidden, ""))
        app.call(guest, "RunPage.go_on", shared)
        assert store.database.read_with(repository.load_study, shared).state == "unfinished", (
            "a guest resumed it"
        )
    with app.client() as stranger:
        assert stranger.get(f"/studies/{shared}/scores.csv").status_code == 401
