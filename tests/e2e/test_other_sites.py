"""A hostile page in the same browser neither reads from the app nor changes anything in it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.steps import log_in
from tests.factories.app import finished
from tests.ui.served_app import Served, by
from ui.accounts.access import EVERYBODY, acting_as

ATTACK = (Path(__file__).parent / "hostile_page.js").read_text()


class _Blank(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = b"<!doctype html><title>hostile</title><body></body>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """Port of a site that is not ours."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Blank)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def runs_of(app: Served) -> list[str]:
    return [each.slug for each in app.services.library.list_runs()[0]]


def attack(page: Page, base: str, slug: str) -> dict[str, Any]:
    return page.evaluate(ATTACK, {"base": base, "slug": slug})


@pytest.fixture
def context(browser, faults) -> Iterator[BrowserContext]:
    """Somebody whom a hostile page makes ask for what the app and the browser then refuse."""
    faults.expect("CORS policy", "Opener-Policy", "frame-ancestors", "403", "net::ERR_")
    with browser.new_context() as context:
        yield context


@contextmanager
def page_at(context: BrowserContext, url: str) -> Iterator[Page]:
    page = context.new_page()
    page.goto(url)
    yield page
    page.close()


def assert_nothing_gained(app: Served, context: BrowserContext, hostile: str, base: str) -> None:
    """Nothing from the hostile page; from the app's own one the same attempts succeed."""
    slug = finished(app.services, "steps 1")
    before = runs_of(app)
    with page_at(context, f"{base}/healthz") as own, page_at(context, hostile) as page:
        result = attack(page, base, slug)
        assert result == {"got": [], "tried": 20}
        assert runs_of(app) == before
        assert {"frame", f"/data/{slug}/prompt"} <= set(attack(own, base, slug)["got"])
        assert len(runs_of(app)) > len(before)
        # A link in it still opens the app.
        page.evaluate("url => { location.href = url }", f"{base}/r/{slug}")
        page.wait_for_url(f"{base}/run?id={slug}", wait_until="commit")
        expect(page).to_have_title("steps 1 - CriticalKV Lab")


def test_a_page_on_another_port_of_this_machine(app, context, elsewhere):
    own = f"http://localhost:{app.url.rpartition(':')[2]}"
    with acting_as(EVERYBODY):
        assert_nothing_gained(app, context, f"http://localhost:{elsewhere}/", own)


def test_a_page_on_another_host_name(app, context, elsewhere):
    with acting_as(EVERYBODY):
        assert_nothing_gained(app, context, f"http://evil.test:{elsewhere}/", app.url)
        rebound = f"http://evil.test:{app.url.rpartition(':')[2]}"
        with page_at(context, f"{rebound}/methods") as page:
            assert "does not answer to this name" in page.inner_text("body")
            assert attack(page, rebound, finished(app.services, "steps 1"))["got"] == []


def test_a_page_on_a_sibling_name_with_logins(team_app, context, elsewhere):
    base = f"http://lab.team.test:{team_app.url.rpartition(':')[2]}"
    with by("ann"):
        log_in(context.new_page(), base, "ann", "/account")
        assert_nothing_gained(team_app, context, f"http://evil.team.test:{elsewhere}/", base)
