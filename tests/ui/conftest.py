"""Services on a SQLite file, with a worker that plays scripts."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storage.database import Database, default_url, open_database
from tests.factories.app import make_client
from ui.limits import Limits
from ui.services.services import Services

if TYPE_CHECKING:
    from tests.ui.served_app import Served


@pytest.fixture
def file_database(tmp_path: Path) -> Iterator[Database]:
    """One SQLite file; `database` would run a test on PostgreSQL too."""
    with closing(open_database(default_url(tmp_path))) as database:
        yield database


@pytest.fixture
def services(file_database: Database) -> Iterator[Services]:
    """With room for three unfinished runs."""
    services = Services(file_database, make_client=make_client, limits=Limits(queue=3))
    yield services
    services.close()


@pytest.fixture(scope="module")
def app(team_app: "Served") -> "Served":
    """The app that most tests ask over HTTP: with logins, and empty at first."""
    return team_app
