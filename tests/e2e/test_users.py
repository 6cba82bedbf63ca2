"""Users in real browsers: links that they share, and their accounts."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e import steps
from tests.factories.app import ENDLESS, end_of, finished, request, script, store_run
from tests.factories.runs import done_result
from tests.ui.served_app import Served, by


@pytest.fixture(scope="module")
def app(team_app) -> Served:
    return team_app


@pytest.fixture(scope="module")
def slug(app) -> str:
    with by("ann"):
        return finished(app.services, "steps 2")


@pytest.fixture(scope="module")
def guest(browser) -> Iterator[Page]:
    """A page of somebody without a login."""
    with browser.new_context() as context:
        yield context.new_page()


def test_a_link_is_made_opened_and_revoked(browser, app, slug, guest):
    context = browser.new_context(viewport=steps.PHONE)
    ann = context.new_page()
    steps.log_in(ann, app.url, "ann", f"/run?id={slug}")
    ann.locator("#share summary").click()
    ann.get_by_label("Read-only, expires").select_option("in 1 day")
    ann.get_by_role("button", name="Make a link").click()
    address = ann.locator(".ckv-share-address")
    expect(address).to_have_value(re.compile("/s/"))
    link = address.input_value()
    assert ann.evaluate("document.documentElement.scrollWidth") <= 430

    guest.goto(link)
    for _ in range(2):  # opened, and loaded again
        expect(guest.locator("#answers")).to_contain_text("w0 w1")
        expect(guest).to_have_url(link)
        expect(guest.locator(".ckv-share-address")).to_have_value(link)
        expect(guest.get_by_role("button", name="Make a link")).to_be_hidden()
        guest.reload()
    expect(guest.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
    for links, name in (("Pages", "Runs"), ("This run", "Run again")):
        expect(ann.get_by_label(links).get_by_role("link", name=name)).to_be_visible()
        expect(guest.get_by_label(links).get_by_role("link", name=name)).to_have_count(0)
    guest.locator("#run-actions summary:visible").first.click()
    expect(guest.get_by_role("link", name="Result (JSON)")).to_be_visible()

    ann.get_by_role("button", name="Revoke the link").click()
    expect(ann.locator("#share")).to_contain_text("The link is revoked")
    expect(ann.locator("#share tbody")).to_contain_text("revoked")
    answer = guest.request.get(f"{app.url}/run?id={slug}")
    assert answer.status == 401
    context.close()


def test_a_guest_uses_every_control(browser, app):
    with by("ann"):
        whole = store_run(app.services, request(), done_result(), owner="ann")
        token = app.services.shares.create(whole, "never")
    page = browser.new_page(viewport=steps.DESK)
    page.goto(f"{app.url}/s/{token}")
    page.locator("#answers tbody tr").first.wait_for()
    assert steps.use_every_control(page) >= 20
    page.close()


# --- logging in and out, the account's and the administrator's page, in a real browser


def expect_well_made_in_both_themes(page: Page) -> None:
    for _ in range(2):
        steps.expect_well_made(page)
        page.evaluate("document.body.classList.toggle('dark')")


@pytest.mark.usefixtures("slug")
def test_by_keyboard_from_the_login_to_log_out(browser, app):
    app.services.accounts.sign_in("root")  # in another browser
    store_run(app.services, request(), done_result())  # without logins
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(f"{app.url}/account?__theme=light")
    expect_well_made_in_both_themes(page)
    page.keyboard.type("root")
    page.keyboard.press("Tab")
    page.keyboard.type("root-secret")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{app.url}/account?__theme=light")
    page.get_by_label("Name").fill("<b>nightly")
    page.get_by_role("button", name="Make a token").click()
    assert page.get_by_label("The new token").input_value().startswith("ckv_")
    expect(page.get_by_role("rowheader", name="<b>nightly")).to_be_visible()
    expect_well_made_in_both_themes(page)
    page.get_by_role("button", name="Revoke <b>nightly").click()
    expect(page.get_by_role("rowheader", name="<b>nightly")).to_have_count(0)
    page.get_by_role("button", name="Log out the browser").first.click()
    with by("ann"):
        waiting = app.services.start_run(script(ENDLESS))
    page.goto(f"{app.url}/admin?__theme=dark")
    expect(page.locator("body")).to_have_class("dark")
    expect_well_made_in_both_themes(page)
    page.get_by_role("button", name=f"Cancel {waiting}").click()
    with by("ann"):
        assert end_of(app.services, waiting).state == "cancelled"
    page.get_by_role("button", name="Take them over").click()
    expect(page.get_by_role("button", name="Take them over")).to_have_count(0)
    page.get_by_role("button", name="Disable bob").click()
    page.get_by_role("button", name="Enable bob").click()
    expect(page.get_by_role("button", name="Disable bob")).to_be_visible()
    page.get_by_role("button", name="Log out", exact=True).click()
    expect(page).to_have_url(f"{app.url}/login")
    page.goto(f"{app.url}/account")
    expect(page.get_by_label("Password")).to_be_visible()
    context.close()
