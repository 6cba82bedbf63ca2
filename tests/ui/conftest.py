"""Services on a SQLite file, with a worker that plays scripts."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from storage.database import Database, default_url, open_database
from tests.factories.app import make_client
from ui.limits import Limits
from ui.services.services import Services


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
