"""Opens an app in a real browser, as a visitor."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.e2e import steps
from tests.ui.served_app import Served


@pytest.fixture(scope="module")
def app(open_app) -> Served:
    """The app that most files share."""
    return open_app


@pytest.fixture(scope="module")
def visitor(browser, app) -> Iterator[BrowserContext]:
    """Somebody whose browser keeps what it loaded from one test to the next, and leaves first."""
    with browser.new_context(viewport=steps.DESK) as context:
        yield context


@pytest.fixture
def context(visitor) -> BrowserContext:
    """The visitor with one blank page, in which nothing was typed yet."""
    for each in visitor.pages:
        each.close()
    visitor.new_page()
    return visitor


@pytest.fixture
def page(context, app) -> Page:
    """The Compare page, ready to type into."""
    (page,) = context.pages
    steps.open_form(page, app.url)
    return page
