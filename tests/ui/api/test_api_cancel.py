"""Runs stopped by programs: what is kept, who may, and that asking again changes nothing."""

import pytest

from tests.factories.app import ENDLESS, end_of, generating, wait_until
from tests.ui.api.test_api import gradio_client
from tests.ui.served_app import by
from ui.api.endpoints import STOPPING


@pytest.fixture(scope="module")
def ann(app):
    return gradio_client(app, "ann")


def test_cancelling_by_plain_http_any_number_of_times_does_no_more_than_once(app):
    with app.client("ann") as client:
        body = {"context": "x", "question": ENDLESS}
        slug = client.post("/api/runs", json=body).json()["slug"]
        with by("ann"):
            wait_until(app.services, slug, generating)
        asked = client.post(f"/api/runs/{slug}/cancel")
        answer = asked.json()
        assert (answer["slug"], answer["told"]) == (slug, STOPPING)
        assert asked.status_code == (200 if answer["over"] else 202)
        assert asked.headers["cache-control"] == "no-store"
        first = client.get(f"/api/runs/{slug}", params={"wait_s": 20}).json()
        assert (first["state"], first["variants"][0]["text"][:3]) == ("cancelled", "w0 ")
        again = client.post(f"/api/runs/{slug}/cancel")
        told = "This run is over already (cancelled); nothing was changed."
        body = {"slug": slug, "state": "cancelled", "over": True, "told": told}
        assert (again.status_code, again.json()) == (200, body)
        assert client.get(f"/api/runs/{slug}").json() == first


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/zzz999zzz999/cancel", 404),
        ("POST", "/nope/cancel", 404),
        ("POST", "/..%2F..%2Fx/cancel", 404),
        ("POST", "/zzz999zzz999/cancel?now=1", 400),
        ("GET", "/zzz999zzz999/cancel", 405),
    ],
)
def test_what_names_no_run_cancels_none(app, method, path, status):
    with app.client("ann") as client:
        answer = client.request(method, f"/api/runs{path}")
    assert answer.status_code == status


def test_only_who_may_change_a_run_cancels_it(app, ann):
    slug = ann.predict("one", question=ENDLESS, api_name="/compare")["slug"]
    with by("ann"):
        token = app.services.shares.create(slug, "1 day")
    with app.client() as guest, app.client("bob") as bob:
        assert guest.get(f"/s/{token}").status_code == 303
        assert slug in app.call(guest, "Api.get_run", slug, 0).text
        assert "There is no run" in app.call(guest, "Api.cancel", slug).text
        assert guest.post(f"/api/runs/{slug}/cancel").status_code == 401
        assert bob.post(f"/api/runs/{slug}/cancel").status_code == 404
        assert bob.get(f"/s/{token}").status_code == 303
        assert bob.get(f"/api/runs/{slug}").status_code == 200
        assert bob.post(f"/api/runs/{slug}/cancel").status_code == 404
    with app.client("ann", headers={"origin": "https://evil.example"}) as tricked:
        assert tricked.post(f"/api/runs/{slug}/cancel").status_code == 403
    with by("ann"):
        wait_until(app.services, slug, generating)
        app.services.cancel_run(slug)
        end_of(app.services, slug)
