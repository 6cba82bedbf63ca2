"""A second database beside `database`: runs are taken from `there` to `here`; runs to store."""

import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from ckv_core.errors import StorageError
from ckv_core.records.events import RunEvent
from ckv_core.records.run_request import RunRequest
from storage import repository
from storage.database import MIGRATIONS, Database, open_database, schemas
from storage.recorder import Recorder, create_run
from storage.records import StoredRun
from tests.factories.events import big_events

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def here(database):
    """An open database without runs."""
    return database


@pytest.fixture(scope="module")
def there(new_url):
    """An open database that a module's tests share."""
    with closing(open_database(new_url())) as opened:
        yield opened


def load(database: Database, slug: str) -> StoredRun:
    """A run as it is stored."""
    return database.read_with(repository.load_run, slug)


def make(
    database: Database,
    title: str = "Title",
    minutes: int = 0,
    **request: object,
) -> str:
    """A run that waits, created so many minutes after START; its slug."""
    asked = RunRequest(**{"context": "c", "variants": ("full", "snapkv")} | request)
    now = START + timedelta(minutes=minutes)
    return database.write_with(create_run, asked, title, now)


def record(
    database: Database,
    asked: RunRequest,
    events: Iterable[RunEvent] | None = None,
    *,
    title: str = "",
    is_over: bool = True,
) -> str:
    """A run of these events, or of a small one's; its slug."""
    recorder = Recorder(database, count().__next__)  # no text follows too soon
    slug = recorder.create(asked, title)
    recorder.start(slug)
    for event in big_events(tokens=16, variants=2) if events is None else events:
        recorder.apply(slug, event)
    if is_over:
        recorder.end(slug)
    return slug


def with_next_schema(folder: Path, monkeypatch: pytest.MonkeyPatch, *statements: str) -> None:
    """The app has one more migration, of these statements."""
    copied = shutil.copytree(MIGRATIONS, folder / "migrations")
    lines = (
        "import sqlalchemy as sa",
        "from alembic import op",
        "revision = 'next_0002'",
        f"down_revision = {schemas(MIGRATIONS)[-1]!r}",
        "def upgrade():",
        *(f"    {statement}" for statement in statements),
    )
    (copied / "versions" / "0002_next.py").write_text("\n".join(lines))
    monkeypatch.setattr("storage.database.MIGRATIONS", copied)


def at_once(*actions: Callable[[], object]) -> list[object]:
    """What each returned, or the error that it raised."""
    start = threading.Barrier(len(actions))

    def act(action: Callable[[], object]) -> object:
        start.wait()
        try:
            return action()
        except StorageError as error:
            return error

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(act, actions))
