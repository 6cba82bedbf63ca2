"""Starts the real app in a folder of its own and opens it in a real browser."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from ckv_core.config import DEFAULT_MODEL
from ckv_core.home import home_folder
from tests.e2e.app_runner import (
    ROOT,
    App,
    Watched,
    note_message,
    note_request,
    wait_until_ready,
)
from tests.ports import free_port


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is an end-to-end test."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's prepared models if there are any; else a folder that the first app fills."""
    prepared = home_folder() / "models"
    if (prepared / DEFAULT_MODEL / "manifest.json").is_file():
        return prepared
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def start_app(
    models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., App]]:
    """Start `python app.py` with an empty data folder; all are stopped in the end."""
    started: list[App] = []

    def start(**environ: str) -> App:
        home = tmp_path_factory.mktemp("home")
        (home / "models").symlink_to(models, target_is_directory=True)
        log = home / "log.txt"
        settings = {"CKV_HOME": str(home), "CKV_PORT": str(free_port()), **environ}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "app.py")],
                cwd=home,
                env={**os.environ, **settings},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        app = App(wait_until_ready(process, log), process, log)
        started.append(app)
        return app

    yield start
    for app in started:
        app.stop()


@pytest.fixture(scope="session")
def app(start_app: Callable[..., App]) -> App:
    """The app that most tests share."""
    return start_app()


@pytest.fixture
def context(browser: Browser, app: App) -> Iterator[BrowserContext]:
    """A visitor; no page of theirs may leave the app's origin or fail in its console."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(30_000)
    watched = Watched()
    context.on("request", lambda request: note_request(watched, app, request.url))
    context.on("console", lambda message: note_message(watched, message.type, message.text))
    context.on("weberror", lambda error: watched.errors.append(str(error.error)))
    yield context
    context.close()
    assert watched.external == []
    assert watched.errors == []


@pytest.fixture
def page(context: BrowserContext, app: App) -> Page:
    """The Compare page, ready to type into."""
    page = context.new_page()
    page.goto(app.url)
    page.locator("#context textarea").wait_for()
    page.locator("#context-bar [data-ready]").wait_for()
    return page
