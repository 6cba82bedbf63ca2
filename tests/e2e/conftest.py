"""Starts the real app in a folder of its own and opens it in a real browser."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize

from ckv_core.models.default_model import prepare_default_model
from ckv_core.models.steps import silent
from tests.e2e.app_runner import (
    ROOT,
    App,
    Watched,
    note_message,
    note_request,
    start,
)

DESK: ViewportSize = {"width": 1440, "height": 900}


@pytest.fixture(scope="session")
def models() -> Path:
    """Where the default model is, prepared by whichever test needs it first."""
    return prepare_default_model(silent).parent


@pytest.fixture(scope="session")
def start_app(
    models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., App]]:
    """Start `python app.py` with an empty data folder; all are stopped in the end."""
    started: list[App] = []

    def start_one(**environ: str) -> App:
        home = tmp_path_factory.mktemp("home")
        (home / "models").symlink_to(models, target_is_directory=True)
        app = start([str(ROOT / "app.py")], home, **environ)
        started.append(app)
        return app

    yield start_one
    for app in started:
        app.stop()


@pytest.fixture(scope="session")
def app(start_app: Callable[..., App]) -> App:
    """The app that most tests share."""
    return start_app()


@pytest.fixture(scope="module")
def visitor(browser: Browser, app: App) -> Iterator[tuple[BrowserContext, Watched]]:
    """Somebody whose browser keeps what it loaded from one test to the next."""
    context = browser.new_context(viewport=DESK)
    watched = Watched()
    context.on("request", lambda request: note_request(watched, app, request.url))
    context.on("console", lambda message: note_message(watched, message.type, message.text))
    context.on("weberror", lambda error: watched.errors.append(str(error.error)))
    context.new_page()
    yield context, watched
    context.close()


@pytest.fixture
def context(visitor: tuple[BrowserContext, Watched]) -> Iterator[BrowserContext]:
    """A visitor's one blank page; none of theirs may leave the app's origin or log errors."""
    context, watched = visitor
    page, *others = context.pages
    for each in others:
        each.close()
    page.set_viewport_size(DESK)
    page.goto("about:blank")
    yield context
    external, errors = watched.external.copy(), watched.errors.copy()
    watched.external.clear()
    watched.errors.clear()
    assert external == []
    assert errors == []


@pytest.fixture
def page(context: BrowserContext, app: App) -> Page:
    """The Compare page, ready to type into."""
    (page,) = context.pages
    page.goto(app.url)
    page.locator("#context textarea").wait_for()
    page.locator("#context-bar [data-ready]").wait_for()
    return page
