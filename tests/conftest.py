"""A browser for tests, and databases: a test that takes one runs on SQLite and on PostgreSQL."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from playwright.sync_api import Browser
from sqlalchemy import text

from storage.database import Database, default_url, open_database
from tests.browser import chromium
from tests.postgresql_server import PostgresqlServer, UnavailableError, running_server

# Hypothesis's profile of here or of CI, without limits of time: a busy machine breaks no law.
settings.register_profile(
    "patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

_numbers = count()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """One real server for all tests; the first that needs it starts it."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_server())
        except UnavailableError as reason:
            pytest.skip(str(reason))
        yield server


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def new_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], str]:
    """Makes URLs of new, blank databases; `parametrize(..., indirect=True)` names one kind."""
    if request.param == "sqlite":
        return lambda: default_url(tmp_path_factory.mktemp("database"))
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    return lambda: server.create(f"test{next(_numbers)}")


@pytest.fixture(scope="module")
def opened(new_url: Callable[[], str]) -> Iterator[Database]:
    """An open database that a module's tests share; hypothesis needs one like it."""
    with closing(open_database(new_url())) as database:
        yield database


@pytest.fixture
def database(opened: Database) -> Database:
    """An open database without runs."""
    with opened.write() as session:
        session.execute(text("DELETE FROM runs"))
    return opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: only one Playwright can run in a thread, and a test may start one."""
    with chromium() as browser:
        yield browser
