"""Opening a database: set-up, bad places, newer schemas, several processes at once."""

import os
import tempfile
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from ckv_core.errors import StorageError
from ckv_core.records.run_request import RunRequest
from storage import library
from storage.database import MIGRATIONS, Database, default_url, open_database, schemas
from storage.models import Run
from storage.recorder import Recorder
from tests.processes import forked
from tests.storage.conftest import with_next_schema


def test_every_connection_is_set_up(tmp_path):
    wanted = {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 1, "busy_timeout": 30_000}
    with closing(open_database(default_url(tmp_path))) as database:
        for session_of in (database.read, database.write):
            with session_of() as session:
                for name, value in wanted.items():
                    assert session.scalar(text(f"PRAGMA {name}")) == value


@pytest.mark.parametrize("folder", ["new/deeper", "a b%20c", "what? yes#1", "ünï"])
def test_the_parent_folder_is_made_whatever_its_name(tmp_path, folder):
    home = tmp_path / folder
    open_database(default_url(home)).close()
    assert (home / "ckv.sqlite3").is_file()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ckv.sqlite3", "CKV_DATABASE_URL is no database URL"),
        ("", "CKV_DATABASE_URL is no database URL"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("mysql://host/name", "takes a sqlite or postgresql URL, and no other"),
        ("postgresql+nosuch://host/name", "driver that is not installed"),
        ("sqlite:////dev/null/x/ckv.sqlite3", "folder /dev/null/x for the database cannot be made"),
    ],
)
def test_a_url_that_cannot_work_is_one_sentence(url, sentence):
    refused(url, sentence)


def assert_one_sentence(error: StorageError) -> None:
    message = str(error)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 300


def refused(url: str, match: str) -> None:
    with pytest.raises(StorageError, match=match) as caught:
        open_database(url)
    assert_one_sentence(caught.value)


def damaged(file: Path) -> None:
    open_database(default_url(file.parent)).close()
    with file.open("r+b") as opened:
        opened.seek(100)
        opened.write(b"\xff" * 3996)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda file: file.write_bytes(b"Dear diary, " * 500), "is not a SQLite database"),
        (Path.mkdir, "cannot be opened"),
        (damaged, "damaged"),
    ],
    ids=["a text", "a folder", "damaged"],
)
def test_what_is_no_whole_database_is_refused_and_left_alone(tmp_path, make, sentence):
    path = tmp_path / "ckv.sqlite3"
    make(path)
    content = path.is_file() and path.read_bytes()
    refused(default_url(tmp_path), sentence)
    assert content == (path.is_file() and path.read_bytes())


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
@pytest.mark.parametrize("existing", [False, True])
def test_a_read_only_folder_is_one_sentence(existing):
    # Not tmp_path: root's temporary folder is closed to the user that the process turns into.
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        if existing:
            open_database(default_url(home)).close()
            (home / "ckv.sqlite3").chmod(0o444)
        home.chmod(0o555)
        with forked(open_as_anybody, home) as (_, told):
            error = told.recv()
        home.chmod(0o755)
    assert "read-only" in str(error) or "cannot be opened" in str(error)
    assert_one_sentence(error)


def open_as_anybody(home: Path, told: Connection) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)  # root may write anywhere
    try:
        open_database(default_url(home))
    except StorageError as error:
        told.send(error)


@pytest.mark.parametrize("schema", ["next_9999", "0001", "tables_00000000"])
def test_a_schema_of_another_version_is_refused_and_left_alone(new_url, schema):
    url = new_url()
    open_database(url).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{schema}'"))
    refused(url, rf"another version of the app \(schema {schema}\)\. Export its runs with that")
    with engine.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).all()
    assert found == [(schema,)]
    engine.dispose()


def test_a_change_of_any_column_is_another_schema(monkeypatch):
    first = schemas(MIGRATIONS)
    schemas.cache_clear()
    monkeypatch.setattr(Run.__table__.c.title, "nullable", True)
    changed = schemas(MIGRATIONS)
    schemas.cache_clear()
    assert len(first) == len(changed) == 1
    assert first != changed


@pytest.mark.slow
def test_a_migration_that_fails_halfway_leaves_the_database_as_it_was(
    new_url, tmp_path, monkeypatch
):
    url = new_url()
    open_database(url).close()
    with monkeypatch.context() as patched:
        with_next_schema(
            tmp_path,
            patched,
            "op.create_table('half', sa.Column('id', sa.Integer))",
            "raise RuntimeError('broken')",
        )
        with pytest.raises(RuntimeError, match="broken"):
            open_database(url)
    with closing(open_database(url)) as database:
        assert "half" not in inspect(database.engine).get_table_names()


def test_a_failed_write_leaves_nothing_and_is_explained(database):
    recorder = Recorder(database)
    slug = recorder.create(RunRequest(context="c"))
    with pytest.raises(StorageError, match=r"failed: .*(UNIQUE|unique) constraint") as caught:
        delete_and_fail(database, slug)
    assert_one_sentence(caught.value)
    assert database.read_with(library.list_runs)[1] == 1


def delete_and_fail(database: Database, slug: str) -> None:
    with database.write() as session:
        library.delete_runs(session, [slug], datetime.now(UTC))
        for _ in range(2):
            session.execute(text("INSERT INTO alembic_version VALUES ('9999')"))


@pytest.mark.slow
def test_processes_that_open_a_blank_database_at_once_all_succeed(new_url):
    for url in [new_url() for _ in range(3)]:
        with ExitStack() as stack:
            pipes = [stack.enter_context(forked(make_five, url))[1] for _ in range(3)]
            for pipe in pipes:
                pipe.send("open it")
            assert [pipe.recv() for pipe in pipes] == ["done"] * 3
        with closing(open_database(url)) as database, database.read() as session:
            assert library.list_runs(session)[1] == 15


def make_five(url: str, told: Connection) -> None:
    """Make five runs in a new database, when told to."""
    told.recv()
    database = open_database(url)
    for _ in range(5):
        Recorder(database).create(RunRequest(context="c"))
    told.send("done")
