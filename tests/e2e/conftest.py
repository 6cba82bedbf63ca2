"""Opens an app in a real browser, as a visitor whose pages are watched."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.e2e import steps
from tests.e2e.app_runner import Watched, note_message, note_request
from tests.ui.served_app import Served


@pytest.fixture(scope="module")
def app(open_app) -> Served:
    """The app that most files share."""
    return open_app


@pytest.fixture(scope="module")
def visitor(browser, app) -> Iterator[tuple[BrowserContext, Watched]]:
    """Somebody whose browser keeps what it loaded from one test to the next."""
    context = browser.new_context(viewport=steps.DESK)
    watched = Watched()
    context.on("request", lambda request: note_request(watched, app.url, request.url))
    context.on("console", lambda message: note_message(watched, message.type, message.text))
    context.on("weberror", lambda error: watched.errors.append(str(error.error)))
    context.new_page()
    yield context, watched
    context.close()


@pytest.fixture
def context(visitor) -> Iterator[BrowserContext]:
    """A visitor's one blank page; none of theirs may leave the app's origin or log errors."""
    context, watched = visitor
    page, *others = context.pages
    for each in others:
        each.close()
    page.set_viewport_size(steps.DESK)
    page.goto("about:blank")
    yield context
    external, errors = watched.external.copy(), watched.errors.copy()
    watched.external.clear()
    watched.errors.clear()
    assert external == []
    assert errors == []


@pytest.fixture
def page(context, app) -> Page:
    """The Compare page, ready to type into."""
    (page,) = context.pages
    steps.open_form(page, app.url)
    return page
