"""Light and dark, wide and narrow, and for readers who do not see the page."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.e2e import steps
from tests.e2e.app_runner import App

PATHS = ("/", "/run?id={slug}", "/runs", "/methods")


@pytest.fixture(scope="module")
def slug(browser: Browser, app: App) -> Iterator[str]:
    """A finished run to look at."""
    page = browser.new_page()
    page.goto(app.url)
    page.locator("#context-bar [data-ready]").wait_for()
    steps.fill(page, variants=("Full cache", "SnapKV", "SnapKV + CriticalKV, as printed"))
    steps.run(page)
    yield steps.wait_for_slug(page)
    page.close()


def show(page: Page, app: App, path: str, theme: str) -> None:
    """Open a page in one theme and wait for all of it."""
    separator = "&" if "?" in path else "?"
    page.goto(f"{app.url}{path}{separator}__theme={theme}")
    page.locator("header.ckv-header").wait_for()
    if "run?" in path:
        steps.expect_state(page, "done")
    steps.see_everything(page)


@pytest.mark.parametrize(("theme", "width"), [("light", 430), ("dark", 1680)])
def test_axe_finds_nothing_and_nothing_scrolls_sideways(
    context: BrowserContext, app: App, slug: str, theme: str, width: int
):
    (page,) = context.pages
    page.set_viewport_size({"width": width, "height": 900})
    for path in PATHS:
        show(page, app, path.format(slug=slug), theme)
        if path == "/":
            page.get_by_role("button", name="Advanced parameters").click()
            page.get_by_role("button", name="More variants").click()
        steps.expect_well_made(page)
