"""Services on a SQLite file, with a worker that plays scripts."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from storage.database import Database, default_url, open_database
from tests.factories.app import empty, make_client
from ui.limits import Limits
from ui.services.services import Services
from ui.users import User

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from tests.ui.served_app import Served

LIMITS = Limits(queue=3)


@pytest.fixture
def file_database(tmp_path) -> Iterator[Database]:
    """One SQLite file; `database` would run a test on PostgreSQL too."""
    with closing(open_database(default_url(tmp_path))) as database:
        yield database


@pytest.fixture
def make_services(file_database) -> Iterator[Callable[..., Services]]:
    """Makes services with a worker of a test's own; the test's end closes them."""
    with ExitStack() as stack:

        def make(**given: Any) -> Services:
            given = {"make_client": make_client, **given}
            return stack.enter_context(closing(Services(file_database, **given)))

        yield make


@pytest.fixture(scope="module")
def lasting_services(tmp_path_factory) -> Iterator[Services]:
    """One worker for a module: to start it takes longer than most tests."""
    with closing(open_database(default_url(tmp_path_factory.mktemp("lasting")))) as database:
        services = Services(database, make_client=make_client, limits=LIMITS)
        yield services
        services.close()


@pytest.fixture
def services(lasting_services) -> Services:
    """Without runs, and with room for three unfinished ones."""
    empty(lasting_services)
    return lasting_services


@pytest.fixture
def limited(services, monkeypatch) -> Callable[..., Services]:
    """Gives these services other limits, and logins to those who are named, for one test."""

    def change(*users: str, **limits: int) -> Services:
        monkeypatch.setattr(services._room, "limits", Limits(**limits))
        monkeypatch.setattr(services._access, "users", dict.fromkeys(users, User("")))
        monkeypatch.setattr(services._access, "with_logins", bool(users))
        return services

    return change


@pytest.fixture(scope="module")
def app(team_app) -> "Served":
    """The app that most tests ask over HTTP: with logins, and empty at first."""
    return team_app


@pytest.fixture(scope="module")
def context(browser) -> Iterator["BrowserContext"]:
    """Keeps what it loaded from one test to the next."""
    from tests.e2e.steps import DESK  # Playwright takes a while

    with browser.new_context(viewport=DESK) as context:
        yield context


@pytest.fixture
def page(context) -> Iterator["Page"]:
    """A tab of its own, in which nothing was typed yet."""
    page = context.new_page()
    yield page
    page.close()
