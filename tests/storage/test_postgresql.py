"""What only PostgreSQL can do wrong: who may come in, lost connections, writers at once."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import text

from ckv_core.errors import StorageError
from ckv_core.request.compare_request import CompareRequest
from storage import library, repository
from storage.database import Database, open_database
from storage.recorder import Recorder
from storage.records import RunFilter
from tests.factories.events import assert_same_result
from tests.postgresql_server import PostgresqlServer
from tests.storage.conftest import at_once, load, record

REQUEST = CompareRequest(context="A long text.", question="What?")
DELETED_AT = datetime(2026, 1, 2, tzinfo=UTC)
MOMENT = timedelta(milliseconds=1)


@pytest.fixture(scope="module")
def url(postgresql):
    return postgresql.create("laws")


@pytest.fixture
def databases(url) -> Iterator[tuple[Database, Database]]:
    """The same database as two servers open it."""
    with closing(open_database(url)) as first, closing(open_database(url)) as second:
        yield first, second


@contextmanager
def administering(server: PostgresqlServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        yield connection


def drop_connections(server: PostgresqlServer) -> None:
    """As a restart of PostgreSQL does."""
    with administering(server) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'laws'"
        )


def test_a_url_that_cannot_work_is_one_sentence_without_the_password(postgresql):
    with administering(postgresql) as connection:
        connection.execute("CREATE ROLE stranger LOGIN PASSWORD 'secret'")
        connection.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        connection.execute("CREATE DATABASE closed")
    place = f"127.0.0.1:{postgresql.port}"
    for wrong, sentence in {
        postgresql.url("nosuch"): "has no database",
        f"postgresql://ckv:secret@{place}/postgres": "refused the user or the password",
        f"postgresql://{place}/postgres?user=ckv&password=secret": "refused the user",
        f"postgresql://stranger:secret@{place}/closed": "may not make or change tables",
        "postgresql://ckv:secret@127.0.0.1:1/x": "No PostgreSQL answers",
        postgresql.url("latin"): "its encoding is LATIN1",
    }.items():
        with pytest.raises(StorageError, match=sentence) as caught:
            open_database(wrong)
        message = str(caught.value)
        assert message.endswith(".")
        assert "\n" not in message
        assert "secret" not in message
        assert postgresql.password not in message


def test_a_url_as_hosting_services_write_it_works(url):
    open_database(url.replace("postgresql://", "postgres://")).close()


def test_a_reader_sees_one_moment_and_cannot_write(databases):
    reading, writing = databases
    slug = Recorder(writing).create(REQUEST)
    with reading.read() as session:
        assert repository.load_run(session, slug).state == "queued"
        assert Recorder(writing).finish(slug)
        assert repository.load_run(session, slug).state == "queued"
    assert load(reading, slug).state == "done"
    with pytest.raises(StorageError, match="read-only"), reading.read() as session:
        session.execute(text("DELETE FROM runs"))


def test_connections_that_were_lost_are_made_anew(databases, postgresql):
    first, second = databases
    slug = Recorder(first).create(REQUEST)

    def start_twice() -> None:
        with first.write() as session:
            repository.mark_running(session, slug, datetime.now(UTC))
            drop_connections(postgresql)
            repository.mark_running(session, slug, datetime.now(UTC))

    with pytest.raises(StorageError, match="ended the connection"):
        start_twice()
    for database in (first, second):
        assert load(database, slug).state == "queued"
    assert Recorder(second).finish(slug)


def test_a_dump_restores_to_the_same_runs(postgresql, databases, tmp_path):
    slug = record(databases[0], REQUEST)
    target = postgresql.create("restored")
    dump = str(tmp_path / "ckv.dump")
    for program, *options in (
        ("pg_dump", "--format=custom", f"--file={dump}", postgresql.url("laws")),
        ("pg_restore", "--clean", "--if-exists", f"--dbname={target}", dump),
    ):
        subprocess.run([postgresql.programs / program, *options], check=True, capture_output=True)
    with closing(open_database(target)) as restored:
        assert Recorder(restored).recover("Gone.") >= 0
        with restored.read() as session:
            copy = repository.load_run(session, slug)
            assert library.list_runs(session, RunFilter(text="what token63"))[1] == 1
        original = load(databases[0], slug)
        assert_same_result(copy.result, original.result)
        assert (copy.request, copy.finished_at) == (original.request, original.finished_at)
        Recorder(restored).create(REQUEST)  # its counters go on, too


def test_of_two_servers_that_end_a_run_at_once_one_does(databases):
    first, second = (Recorder(database) for database in databases)
    for _ in range(20):
        slug = first.create(REQUEST)
        ended = at_once(lambda s=slug: first.finish(s), lambda s=slug: second.cancel(s, "Stop."))
        assert sorted(ended) == [False, True]
        run = load(databases[0], slug)
        assert (run.state, run.reason) == (("done", "") if ended[0] else ("cancelled", "Stop."))


def test_a_run_that_is_being_restored_is_not_purged_by_another_server(databases, postgresql):
    slug = deleted_run(databases[0])
    with databases[0].write() as session:
        assert library.restore_runs(session, [slug], DELETED_AT - MOMENT) == [slug]
        purging = started(lambda: purged(databases[1]))
        wait_until_over_or_waiting(postgresql, purging)
    purging.join(60)
    with databases[0].read() as session:
        assert repository.load_run(session, slug).state == "done"
        assert slug in {run.slug for run in library.list_runs(session, RunFilter(text="what"))[0]}


def test_a_run_that_is_being_purged_is_not_said_to_be_restored(databases, postgresql):
    slug, told = deleted_run(databases[0]), []

    def restore() -> None:
        with databases[1].write() as session:
            told.append(library.restore_runs(session, [slug], DELETED_AT - MOMENT))

    with databases[0].write() as session:
        assert library.purge_deleted(session, DELETED_AT + MOMENT) == 1
        restoring = started(restore)
        wait_until_over_or_waiting(postgresql, restoring)
    restoring.join(60)
    assert told == [[]]


def test_what_is_purged_by_two_servers_at_once_is_gone_once(databases):
    for _ in range(10):
        for _ in range(3):
            deleted_run(databases[0])
        counts = at_once(*(lambda d=database: purged(d) for database in databases))
        assert sum(counts) + purged(databases[0]) == 3


def deleted_run(database: Database) -> str:
    """A run that was deleted just as long ago as it can be restored, as one of two clocks says."""
    slug = record(database, REQUEST)
    with database.write() as session:
        library.delete_runs(session, [slug], DELETED_AT)
    return slug


def purged(database: Database) -> int:
    with database.write() as session:
        return library.purge_deleted(session, DELETED_AT + MOMENT)


def started(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def wait_until_over_or_waiting(server: PostgresqlServer, thread: threading.Thread) -> None:
    """Until the thread has ended, or waits for a lock that another connection holds."""
    until = time.monotonic() + 30
    with administering(server) as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while thread.is_alive() and connection.execute(asked).fetchone() == (0,):
            assert time.monotonic() < until
            time.sleep(0.01)


def test_two_who_annotate_a_run_at_once_both_succeed(databases):
    slug = Recorder(databases[0]).create(REQUEST)

    def annotate(database: Database, title: str) -> None:
        with database.write() as session:
            library.annotate(session, slug, title, "", ["same", "tags"])

    def tag(database: Database) -> None:
        with database.write() as session:
            library.add_tag(session, [slug], "same")

    for number in range(20):
        results = at_once(
            lambda n=number: annotate(databases[0], f"Left {n}"),
            lambda n=number: annotate(databases[1], f"Right {n}"),
            lambda: tag(databases[1]),
        )
        assert results == [None, None, None]
