"""Logging in and out, the account's and the administrator's page, in a real browser."""

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.steps import expect_well_made
from tests.factories.app import finished
from tests.ui.served_app import Served, by

NARROW = 390


@pytest.fixture(scope="module")
def app(team_app: Served) -> Served:
    with by("ann"):
        finished(team_app.services, "steps 1")
    return team_app


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_by_keyboard_from_the_login_to_log_out(browser: Browser, app: Served, theme: str) -> None:
    context = browser.new_context(viewport={"width": NARROW, "height": 844})
    context.set_default_timeout(20_000)
    page = context.new_page()
    page.goto(f"{app.url}/account?__theme={theme}")
    expect_well_made(page)
    page.keyboard.type("root")
    page.keyboard.press("Tab")
    page.keyboard.type("root-secret")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{app.url}/account?__theme={theme}")
    page.get_by_label("Name").fill("<b>nightly")
    page.get_by_role("button", name="Make a token").click()
    assert page.get_by_label("The new token").input_value().startswith("ckv_")
    expect(page.get_by_role("rowheader", name="<b>nightly")).to_be_visible()
    expect_well_made(page)
    page.get_by_role("button", name="Revoke <b>nightly").click()
    expect(page.get_by_text("You have no token.")).to_be_visible()
    page.goto(f"{app.url}/admin?__theme={theme}")
    expect(page.get_by_role("button", name="Disable bob")).to_be_visible()
    expect_well_made(page)
    page.get_by_role("button", name="Log out", exact=True).click()
    expect(page).to_have_url(f"{app.url}/login")
    page.goto(f"{app.url}/account")
    expect(page.get_by_label("Password")).to_be_visible()
    context.close()
