"""Opening a database: set-up, bad places, newer schemas, several processes at once."""

import os
import sqlite3
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from ckv_core.errors import StorageError
from ckv_core.request.compare_request import CompareRequest
from storage import library
from storage.database import Database, default_url, open_database
from storage.recorder import Recorder
from tests.processes import python


def test_every_connection_is_set_up(tmp_path):
    database = open_database(default_url(tmp_path))
    for session_of in (database.read, database.write):
        with session_of() as session:
            pragmas = {
                name: session.execute(text(f"PRAGMA {name}")).scalar()
                for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
            }
        assert pragmas == {
            "journal_mode": "wal",
            "foreign_keys": 1,
            "synchronous": 1,
            "busy_timeout": 30_000,
        }
    database.close()


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
    with pytest.raises(StorageError, match=sentence) as caught:
        open_database(url)
    assert_one_sentence(caught.value)


def assert_one_sentence(error: StorageError) -> None:
    message = str(error)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 300


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 500)
    with pytest.raises(StorageError, match="is not a SQLite database") as caught:
        open_database(f"sqlite:///{path}")
    assert_one_sentence(caught.value)
    assert path.read_text() == "Dear diary, " * 500


def test_a_folder_in_place_of_the_file_is_one_sentence(tmp_path):
    (tmp_path / "ckv.sqlite3").mkdir()
    with pytest.raises(StorageError, match="cannot be opened") as caught:
        open_database(default_url(tmp_path))
    assert_one_sentence(caught.value)


def test_a_damaged_database_is_one_sentence(tmp_path):
    open_database(default_url(tmp_path)).close()
    path = tmp_path / "ckv.sqlite3"
    data = bytearray(path.read_bytes())
    data[100:4096] = b"\xff" * 3996
    path.write_bytes(data)
    with pytest.raises(StorageError, match="damaged") as caught:
        open_database(default_url(tmp_path))
    assert_one_sentence(caught.value)


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
        process = python(
            """
            import os, sys
            from pathlib import Path
            from ckv_core.errors import StorageError
            from storage.database import Database, default_url, open_database
            import sqlalchemy.dialects.sqlite.pysqlite, logging.config, unicodedata
            if os.geteuid() == 0:
                os.setuid(65534)  # root may write anywhere
            try:
                open_database(default_url(Path(sys.argv[1])))
            except StorageError as error:
                print(error)
            """,
            home,
        )
        out, err = process.communicate(timeout=60)
        home.chmod(0o755)
    assert err == ""
    assert "read-only" in out or "cannot be opened" in out
    assert out.count("\n") == 1


def test_opening_waits_for_a_program_that_writes(tmp_path):
    # A file that is not in WAL mode yet: the switch fails at once while another writes.
    writer = sqlite3.connect(
        tmp_path / "ckv.sqlite3", isolation_level=None, check_same_thread=False
    )
    writer.execute("CREATE TABLE other (x)")
    writer.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.5, lambda: writer.execute("COMMIT"))
    release.start()
    open_database(default_url(tmp_path)).close()
    release.join()
    writer.close()


def test_a_newer_schema_is_refused_and_left_alone(new_url):
    url = new_url()
    open_database(url).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StorageError, match=r"newer version of the app \(schema 9999\)") as caught:
        open_database(url)
    assert_one_sentence(caught.value)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).all()
    assert found == [("9999",)]
    engine.dispose()


def test_a_failed_write_leaves_nothing_and_is_explained(database):
    recorder = Recorder(database)
    slug = recorder.create(CompareRequest(context="c"))
    with pytest.raises(StorageError, match=r"failed: .*(UNIQUE|unique) constraint") as caught:
        delete_and_fail(database, slug)
    assert_one_sentence(caught.value)
    with database.read() as session:
        assert library.list_runs(session)[1] == 1


def delete_and_fail(database: Database, slug: str) -> None:
    with database.write() as session:
        library.delete_runs(session, [slug], datetime.now(UTC))
        for _ in range(2):
            session.execute(text("INSERT INTO alembic_version VALUES ('9999')"))


@pytest.mark.slow
def test_processes_that_open_a_blank_database_at_once_all_succeed(new_url):
    source = """
        import sys
        from ckv_core.request.compare_request import CompareRequest
        from storage.database import open_database
        from storage.recorder import Recorder
        print("ready", flush=True)
        for line in sys.stdin:
            database = open_database(line.strip())
            for _ in range(5):
                Recorder(database).create(CompareRequest(context="c"))
            database.close()
            print("done", flush=True)
        """
    processes = [python(source) for _ in range(3)]
    urls = [new_url() for _ in range(5)]
    for line, expected in [("", "ready\n"), *((f"{url}\n", "done\n") for url in urls)]:
        for process in processes:
            process.stdin.write(line)
            process.stdin.flush()
        assert [process.stdout.readline() for process in processes] == [expected] * 3
    for process in processes:
        assert process.communicate(timeout=60) == ("", "")
    for url in urls:
        database = open_database(url)
        with database.read() as session:
            assert library.list_runs(session)[1] == 15
        database.close()
