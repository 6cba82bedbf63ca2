"""Light and dark, wide and narrow, and for readers who do not see the page."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
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
    steps.fill(page, variants=("Full cache", "SnapKV", "SnapKV + CriticalKV"))
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
    page.wait_for_timeout(500)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(context: BrowserContext, app: App, slug: str, theme: str, tmp_path):
    page = context.new_page()
    for number, path in enumerate(PATHS):
        show(page, app, path.format(slug=slug), theme)
        page.screenshot(path=tmp_path / f"{theme}-{number}.png", full_page=True)
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [n["target"] for n in v["nodes"]][:5]) for v in found] == [], path


@pytest.mark.parametrize("width", [430, 1680])
def test_no_page_scrolls_sideways(context: BrowserContext, app: App, slug: str, width, tmp_path):
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": 900})
    for number, path in enumerate(PATHS):
        show(page, app, path.format(slug=slug), "light")
        if path == "/":
            page.get_by_role("button", name="Advanced knobs").click()
            page.get_by_role("button", name="More variants").click()
        page.screenshot(path=tmp_path / f"{width}-{number}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
