"""Services on a SQLite file, with a worker that plays scripts."""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from storage.database import Database, default_url, open_database
from tests.factories.app import empty, make_client
from ui.limits import Limits
from ui.services.services import Services

if TYPE_CHECKING:
    from tests.ui.served_app import Served

LIMITS = Limits(queue=3)


@pytest.fixture
def file_database(tmp_path) -> Iterator[Database]:
    """One SQLite file; `database` would run a test on PostgreSQL too."""
    with closing(open_database(default_url(tmp_path))) as database:
        yield database


@pytest.fixture
def new_services(file_database) -> Iterator[Services]:
    """With a worker of a test's own."""
    services = Services(file_database, make_client=make_client, limits=LIMITS)
    yield services
    services.close()


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


@pytest.fixture(scope="module")
def app(team_app) -> "Served":
    """The app that most tests ask over HTTP: with logins, and empty at first."""
    return team_app
