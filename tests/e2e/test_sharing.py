"""A share link made, opened by somebody without a login, and revoked, in a real browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.steps import log_in
from tests.factories.app import finished
from tests.ui.served_app import Served, by


@pytest.fixture(scope="module")
def app(team_app: Served) -> Served:
    return team_app


@pytest.fixture(scope="module")
def slug(app: Served) -> str:
    with by("ann"):
        return finished(app.services, "steps 2")


@pytest.fixture
def ann(browser: Browser, app: Served) -> Iterator[Page]:
    """A page of a user who is logged in."""
    context = browser.new_context(viewport={"width": 430, "height": 900})
    context.set_default_timeout(20_000)
    page = context.new_page()
    log_in(page, app.url, "ann")
    yield page
    context.close()


@pytest.fixture
def guest(browser: Browser) -> Iterator[Page]:
    """A page of somebody without a login."""
    context = browser.new_context()
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()


def test_a_link_is_made_opened_and_revoked(app: Served, slug: str, ann: Page, guest: Page) -> None:
    ann.goto(f"{app.url}/run?id={slug}")
    ann.get_by_role("button", name="Share", exact=True).click()
    ann.get_by_label("Expires").select_option("in 1 day")
    ann.get_by_role("button", name="Make a link").click()
    address = ann.locator(".ckv-share-address")
    expect(address).to_contain_text("/s/")
    assert ann.evaluate("document.documentElement.scrollWidth") <= 430

    guest.goto(address.inner_text())
    for _ in range(2):  # opened, and loaded again
        expect(guest.locator("#generations")).to_contain_text("w0 w1")
        expect(guest).to_have_url(address.inner_text())
        own_link = guest.get_by_label("This run").get_by_role("link", name="/s/")
        assert guest.url.endswith(own_link.inner_text())
        expect(guest.get_by_role("button", name="Share", exact=True)).to_be_hidden()
        guest.reload()
    expect(guest.locator("#share")).to_be_hidden()
    expect(guest.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
    for links, name in (("Pages", "Runs"), ("This run", "Run again with changes")):
        expect(ann.get_by_label(links).get_by_role("link", name=name, exact=True)).to_be_visible()
        expect(guest.get_by_role("link", name=name, exact=True)).to_be_hidden()
    guest.locator(".ckv-menu summary:visible").click()
    expect(guest.get_by_role("link", name="Result (JSON)")).to_be_visible()
    expect(guest.locator("#lineage")).not_to_contain_text("Reproduce", use_inner_text=True)

    ann.get_by_role("button", name="Revoke the link").click()
    expect(ann.locator("#share")).to_contain_text("The link is revoked")
    expect(ann.locator("#share tbody")).to_contain_text("revoked")
    answer = guest.request.get(f"{app.url}/run?id={slug}")
    assert answer.status == 401


def test_without_logins_links_are_plain(open_app: Served, guest: Page) -> None:
    guest.goto(f"{open_app.url}/run?id={finished(open_app.services, 'steps 1')}")
    guest.locator("#share > button").click()
    expect(guest.locator("#share")).to_contain_text("links are plain")
    expect(guest.get_by_role("button", name="Make a link")).to_be_hidden()
