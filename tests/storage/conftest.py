"""A second database beside `database`: runs are taken from `there` to `here`."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from storage import repository
from storage.database import Database, open_database
from storage.records import StoredRun


@pytest.fixture
def here(database: Database) -> Database:
    """An open database without runs."""
    return database


@pytest.fixture(scope="module")
def there(new_url: Callable[[], str]) -> Iterator[Database]:
    """An open database that a module's tests share."""
    with closing(open_database(new_url())) as opened:
        yield opened


def load(database: Database, slug: str) -> StoredRun:
    """A run as it is stored."""
    with database.read() as session:
        return repository.load_run(session, slug)
