"""What only PostgreSQL can do wrong: who may come in, lost connections, writers and servers."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from ckv_core.errors import StorageError
from ckv_core.experiment.study import SampleResult
from ckv_core.records.run_request import RunRequest
from storage import library, repository, servers
from storage.database import Database, open_database
from storage.recorder import Recorder
from storage.records import RunFilter
from storage.servers import only_server
from tests.doc_blocks import blocks
from tests.factories.app import ENDLESS, end_of, generating, make_client, script, wait_until
from tests.postgresql_server import PostgresqlServer
from tests.processes import python, wait_for
from tests.storage.conftest import at_once, load, record
from tests.ui.services.test_studies import STUDY, samples
from ui.services.live_runs import ELSEWHERE, RunSnapshot
from ui.services.runs import LEFT_BEHIND
from ui.services.services import CANCELLED, Services

REQUEST = RunRequest(context="A long text.", question="What?")
DELETED_AT = datetime(2026, 1, 2, tzinfo=UTC)
MOMENT = timedelta(milliseconds=1)
DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "deploy.md"
# Works on one endless run until it is killed.
OTHER = """
    import sys
    from storage.database import open_database
    from storage.servers import only_server
    from tests.factories.app import ENDLESS, generating, make_client, script, wait_until
    from ui.services.services import Services
    database = open_database(sys.argv[1])
    with only_server(database):
        services = Services(database, make_client=make_client)
        slug = services.start_run(script(ENDLESS))
        wait_until(services, slug, generating)
        print(slug, flush=True)
        sys.stdin.read()
    """
# Stores the results of three samples of a study, and is killed where those of a fourth are there.
AT_A_STUDY = """
    import sys
    from storage.database import open_database
    from storage.recorder import Recorder
    from storage.servers import only_server
    from tests.factories.app import make_client
    from tests.ui.services.test_studies import STUDY, samples
    from ui.services.services import Services
    commit, stored = Recorder.commit, []
    def store(self, slug, results):
        stored.append(slug)
        if len(stored) > 3:
            print(slug, flush=True)
            sys.stdin.read()
        commit(self, slug, results)
    Recorder.commit = store
    database = open_database(sys.argv[1])
    with only_server(database):
        Services(database, make_client=make_client).studies.start(STUDY, samples(8))
        sys.stdin.read()
    """


@pytest.fixture(scope="module")
def url(postgresql):
    """A database that no server serves."""
    return postgresql.create("laws")


@pytest.fixture(scope="module")
def served(postgresql):
    """One whose servers fail the runs of dead ones."""
    return postgresql.create("servers")


@pytest.fixture
def databases(url):
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
        postgresql.url("nosuch"): "does not exist",
        f"postgresql://ckv:secret@{place}/postgres": "authentication failed",
        f"postgresql://{place}/postgres?user=ckv&password=secret": "authentication failed",
        f"postgresql://stranger:secret@{place}/closed": "permission denied",
        "postgresql://ckv:secret@127.0.0.1:1/x": "Connection refused",
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
        assert Recorder(writing).end(slug)
        assert repository.load_run(session, slug).state == "queued"
    assert load(reading, slug).state == "done"
    with pytest.raises(StorageError, match="read-only"), reading.read() as session:
        session.execute(text("DELETE FROM runs"))


def test_connections_that_were_lost_are_made_anew(databases, postgresql):
    first, second = databases
    slug = Recorder(first).create(REQUEST)

    def start_twice() -> None:
        with first.write() as session:
            session.execute(text("UPDATE runs SET state = 'running'"))
            drop_connections(postgresql)
            session.execute(text("UPDATE runs SET state = 'running'"))

    with pytest.raises(StorageError, match="terminating connection"):
        start_twice()
    for database in (first, second):
        assert load(database, slug).state == "queued"
    assert Recorder(second).end(slug)


def test_of_two_servers_that_end_a_run_at_once_one_does(databases):
    first, second = (Recorder(database) for database in databases)
    for _ in range(20):
        slug = first.create(REQUEST)
        ended = at_once(
            lambda s=slug: first.end(s), lambda s=slug: second.end(s, "cancelled", "Stop.")
        )
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
        told.append(databases[1].write_with(library.restore_runs, [slug], DELETED_AT - MOMENT))

    with databases[0].write() as session:
        assert library.purge_deleted(session, DELETED_AT + MOMENT) == 1
        restoring = started(restore)
        wait_until_over_or_waiting(postgresql, restoring)
    restoring.join(60)
    assert told == [[]]


def test_what_is_purged_by_two_servers_at_once_is_gone_once(databases):
    for _ in range(5):
        for _ in range(3):
            deleted_run(databases[0])
        counts = at_once(*(lambda d=database: purged(d) for database in databases))
        assert sum(counts) + purged(databases[0]) == 3


def deleted_run(database: Database) -> str:
    """A run that was deleted just as long ago as it can be restored, as one of two clocks says."""
    slug = record(database, REQUEST)
    database.write_with(library.delete_runs, [slug], DELETED_AT)
    return slug


def purged(database: Database) -> int:
    return database.write_with(library.purge_deleted, DELETED_AT + MOMENT)


def started(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def wait_until_over_or_waiting(server: PostgresqlServer, thread: threading.Thread) -> None:
    """Until the thread has ended, or waits for a lock that another connection holds."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with administering(server) as connection:
        wait_for(lambda: not thread.is_alive() or connection.execute(asked).fetchone() != (0,))


def test_two_who_annotate_a_run_at_once_both_succeed(databases):
    slug = Recorder(databases[0]).create(REQUEST)

    def annotate(database: Database, title: str) -> None:
        database.write_with(library.annotate, slug, title, "")

    for number in range(20):
        results = at_once(
            lambda n=number: annotate(databases[0], f"Left {n}"),
            lambda n=number: annotate(databases[1], f"Right {n}"),
        )
        assert results == [None, None]


# --- several servers: nobody fails another's runs, and the dead are noticed --------------------


@contextmanager
def serving(address: str) -> Iterator[Services]:
    """A server with a worker that plays scripts."""
    with closing(open_database(address)) as database, only_server(database):
        services = Services(database, make_client=make_client)
        yield services
        services.close()


@pytest.fixture(scope="module")
def services(served):
    with serving(served) as services:
        yield services


@pytest.fixture(scope="module")
def theirs(served):
    """Another server, in this process too."""
    with serving(served) as services:
        yield services


def test_a_lock_whose_connection_was_lost_is_taken_again(served, postgresql, monkeypatch):
    monkeypatch.setattr(servers, "CHECK_INTERVAL_S", 0.05)
    with closing(open_database(served)) as database, closing(open_database(served)) as other:
        with only_server(database):
            Recorder(database).create(REQUEST)
            former = lock_holders(postgresql, database.server, "pid")
            lost = lock_holders(postgresql, database.server, "pg_terminate_backend(pid)")
            assert lost == [True]
            # PostgreSQL ends it a little later; until then it still holds the lock.
            wait_for(lambda: lock_holders(postgresql, database.server, "pid") not in ([], former))
            assert Recorder(other).recover("Gone.") == 0
        # PostgreSQL lets go of it once it has seen the end of the connection.
        wait_for(lambda: lock_holders(postgresql, database.server, "pid") == [])
        assert Recorder(other).recover("Gone.") == 1


def lock_holders(server: PostgresqlServer, number: int, wanted: str) -> list[object]:
    """This of each connection that holds the lock of that number."""
    with psycopg.connect(server.url("servers"), autocommit=True) as connection:
        rows = connection.execute(
            f"SELECT {wanted} FROM pg_locks WHERE locktype = 'advisory' AND granted "
            "AND (classid::bigint << 32) + objid::bigint = %s",
            [number],
        )
        return [row[0] for row in rows]


@contextmanager
def other_process(source: str, address: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """Another server, and the run or study that it is at."""
    with python(source, address) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def text_of(view: RunSnapshot) -> str:
    return view.result.variants[0].text


def test_runs_of_a_living_server_are_left_alone_and_those_of_a_killed_one_failed(services, served):
    with other_process(OTHER, served) as (process, slug):
        third = open_database(served)
        with closing(third), only_server(third):
            assert Recorder(third).recover("Gone.") == 0
        view = wait_until(services, slug, generating)
        assert (view.state, view.reason) == ("running", ELSEWHERE)
        assert view.request == script(ENDLESS)
        with pytest.raises(StorageError, match="not over; cancel it first"):
            services.library.delete([slug])
        own = services.start_run(script(ENDLESS))
        written = len(text_of(wait_until(services, own, generating)))
        process.kill()
        process.wait()
        end = end_of(services, slug)
    assert (end.state, end.reason) == ("failed", LEFT_BEHIND)
    assert text_of(end).startswith("w0 ")
    services.library.delete([slug])
    # The survivor's own run goes on: more text comes, and the database has it as running.
    wait_until(services, own, lambda view: len(text_of(view)) > written)
    assert load(services._database, own).state == "running"
    services.cancel_run(own)
    assert end_of(services, own).state == "cancelled"


def test_a_study_is_claimed_by_one_server_until_it_dies(url):
    with closing(open_database(url)) as one, closing(open_database(url)) as other:
        first, second = Recorder(one), Recorder(other)
        slug = first.save(STUDY, ())
        assert not first.start(slug), "nobody wants it"
        first.want(slug)
        with only_server(one):
            assert first.start(slug)
            assert first.start(slug), "its own again"
            assert not second.start(slug)
            assert other.read_with(repository.load_study, slug).server == one.server
        wait_for(lambda: second.start(slug))
        second.release(slug)
        found = one.read_with(repository.load_study, slug)
        assert (found.server, found.state) == (None, "queued")


def test_a_study_of_a_killed_server_is_ended_by_another_and_no_sample_counts_twice(
    postgresql, monkeypatch
):
    claims, committed = [], []
    claim, commit = Recorder.start, Recorder.commit

    def noted_claim(self: Recorder, slug: str) -> bool:
        claims.append(claim(self, slug))
        return claims[-1]

    def noted_commit(self: Recorder, slug: str, results: Sequence[SampleResult]) -> None:
        committed.append(results[0].sample)
        commit(self, slug, results)

    monkeypatch.setattr(Recorder, "start", noted_claim)
    monkeypatch.setattr(Recorder, "commit", noted_commit)
    monkeypatch.setattr("ui.services.runs.CHECK_S", 0.02)
    address = postgresql.create("studied")
    with other_process(AT_A_STUDY, address) as (process, slug), serving(address) as services:
        wait_for(lambda: claims)
        assert not any(claims), "it was taken from a server that lives"
        stored = services.studies.results(slug)
        process.kill()
        process.wait()
        wait_for(lambda: services.view(slug).state == "done")
        results = services.studies.results(slug)
    done = {result.sample for result in stored}
    assert len(done) == 3
    assert sorted(committed) == sorted({sample.id for sample in samples(8)} - done)
    by_key = {result.key: result for result in results}
    assert len(by_key) == len(results) == 8 * len(STUDY.points())
    assert all(by_key[result.key] == result for result in stored)
    assert {result.state for result in results} == {"done"}


def test_a_run_of_another_server_is_followed_to_its_end(services, served, monkeypatch):
    monkeypatch.setattr("ui.services.services.POLL_INTERVAL_S", 0.02)
    with closing(open_database(served)) as theirs, only_server(theirs):
        recorder = Recorder(theirs)
        first, slug = recorder.create(REQUEST), recorder.create(REQUEST)
        assert [services.snapshot(each).queue_ahead for each in (first, slug)] == [0, 1]
        recorder.end(first)
        assert services.snapshot(slug).queue_ahead == 0

        async def follow() -> list[str]:
            states = []
            async for view in services.watch(slug):
                states.append(view.state)
                if states.count("queued") == 2:
                    recorder.start(slug)
                if states.count("running") == 2:
                    recorder.end(slug)
            return states

        states = asyncio.run(follow())
    assert list(dict.fromkeys(states)) == ["queued", "running", "done"]


def test_a_run_is_cancelled_from_another_server(services, theirs):
    slug = theirs.start_run(script(ENDLESS))
    wait_until(theirs, slug, generating)
    watched = theirs._runs.find(slug)
    services.cancel_run(slug)
    assert services.snapshot(slug).state == "cancelled"
    wait_for(lambda: not theirs._runs.unfinished())
    assert watched.view.state == "cancelled"
    assert theirs.snapshot(slug).state == "cancelled"
    # Its worker is free again, and each server sees what the other one did.
    last = theirs.start_run(script("steps 2"))
    assert end_of(services, last).state == "done"


def test_a_run_that_was_cancelled_elsewhere_at_its_last_moment_is_not_shown_as_done(
    services, served
):
    with serving(served) as other:  # whose worker goes on hanging
        slug = other.start_run(script("hang"))
        wait_until(other, slug, lambda view: bool(view.result.variants))
        watched = other._runs.find(slug)
        services.cancel_run(slug)
        other._runs.end(slug, "done", "")
        seen = watched.view
    assert (seen.state, seen.reason) == ("cancelled", CANCELLED)


def test_a_database_made_as_deploy_says_serves_its_user(postgresql):
    (written,) = (block for kind, block in blocks(DEPLOY) if kind == "sh" and "createdb" in block)
    for shown, here in (
        ("db.example.org", f"127.0.0.1:{postgresql.port}"),
        ("?sslmode=require", ""),
        ("ckv", "deployed"),  # the tests' own user is called ckv
    ):
        assert shown in written
        written = written.replace(shown, here)
    ran = subprocess.run(
        ["bash", "-euc", f"{written}{sys.executable} -m cli list"],
        env=os.environ
        | {"PATH": f"{postgresql.programs}:{os.defpath}", "PGPASSWORD": postgresql.password}
        | {"PGHOST": "127.0.0.1", "PGPORT": str(postgresql.port), "PGUSER": "ckv"},
        input="PASSWORD\nPASSWORD\n",
        start_new_session=True,  # without a terminal the password is read from the input
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    with psycopg.connect(postgresql.url("deployed")) as connection:
        owner = connection.execute("SELECT tableowner FROM pg_tables WHERE tablename = 'runs'")
        assert owner.fetchall() == [("deployed",)]
