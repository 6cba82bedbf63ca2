"""Starts the real app in a folder of its own and opens it in a real browser."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from ckv_core.config import DEFAULT_MODEL
from ckv_core.home import home_folder

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"ready at (http://\S+)/")
START_LIMIT_S = 90
BROWSER_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is an end-to-end test."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@dataclass(frozen=True, slots=True)
class App:
    """One running app."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def workers(self) -> list[int]:
        """Process ids of the model workers."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.process.pid), "-f", "spawn_main"],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(pid) for pid in found.stdout.split()]

    def stop(self) -> int:
        """SIGTERM, as a service manager would; the exit status."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@dataclass
class Watched:
    """What a page must not do."""

    external: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium of the system, or Playwright's own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=BROWSER_ARGS
        )
        yield browser
        browser.close()


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


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """The app's address, once it says so."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        if match := READY.search(log.read_text()):
            return match[1]
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"The app did not start:\n{log.read_text()}")


def note_request(watched: Watched, app: App, url: str) -> None:
    """Keep requests that leave the app."""
    if not url.startswith((app.url, "data:", "blob:")):
        watched.external.append(url)


def note_message(watched: Watched, kind: str, text: str) -> None:
    """Keep errors; leaving a page cuts its event stream, and a 404 is some tests' purpose."""
    harmless = ("AbortError", "Connection errored out", "net::ERR_", "404", "BodyStreamBuffer")
    if kind == "error" and not any(word in text for word in harmless):
        watched.errors.append(text)
