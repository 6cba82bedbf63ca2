"""Several servers on one PostgreSQL: nobody fails another's runs, and the dead are noticed."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from ckv_core.errors import StorageError
from ckv_core.request.compare_request import CompareRequest
from storage import server_lock
from storage.database import Database, open_database
from storage.recorder import Recorder
from storage.server_lock import only_server
from tests.factories.app import ENDLESS, end_of, generating, make_client, script, wait_until
from tests.postgresql_server import PostgresqlServer
from tests.processes import python
from tests.storage.conftest import load
from ui.services.live_runs import ELSEWHERE, RunSnapshot
from ui.services.services import CANCELLED, Services
from ui.services.stored_runs import LEFT_BEHIND

REQUEST = CompareRequest(context="A long text.", question="What?")
PATIENCE_S = 60
# Works on one endless run until it is killed.
OTHER = """
    import sys
    from storage.database import open_database
    from storage.server_lock import only_server
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


@pytest.fixture(scope="module")
def url(postgresql):
    return postgresql.create("servers")


@pytest.fixture
def database(url) -> Iterator[Database]:
    with closing(open_database(url)) as database, only_server(database):
        yield database


@pytest.fixture
def services(database) -> Iterator[Services]:
    opened = Services(database, make_client=make_client)
    yield opened
    opened.close()


@contextmanager
def other_process(url: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """Another server, and the run that it is at."""
    with python(OTHER, url) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def text_of(view: RunSnapshot) -> str:
    return view.result.variants[0].text


def test_runs_of_a_living_server_are_left_alone_and_those_of_a_killed_one_failed(services, url):
    with other_process(url) as (process, slug):
        third = open_database(url)
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


def test_a_run_of_another_server_is_followed_to_its_end(services, url, monkeypatch):
    monkeypatch.setattr("ui.services.stored_runs.POLL_INTERVAL_S", 0.02)
    with closing(open_database(url)) as theirs, only_server(theirs):
        recorder = Recorder(theirs)
        first, slug = recorder.create(REQUEST), recorder.create(REQUEST)
        assert [services.snapshot(each).queue_ahead for each in (first, slug)] == [0, 1]
        recorder.finish(first)
        assert services.snapshot(slug).queue_ahead == 0

        async def follow() -> list[str]:
            states = []
            async for view in services.watch(slug):
                states.append(view.state)
                if states.count("queued") == 2:
                    recorder.start(slug)
                if states.count("running") == 2:
                    recorder.finish(slug)
            return states

        states = asyncio.run(follow())
    assert list(dict.fromkeys(states)) == ["queued", "running", "done"]


def test_a_run_is_cancelled_from_another_server(services, url):
    with closing(open_database(url)) as database, only_server(database):
        theirs = Services(database, make_client=make_client)
        slug = theirs.start_run(script(ENDLESS))
        wait_until(theirs, slug, generating)
        watched = theirs._unfinished.find(slug)
        services.cancel_run(slug)
        assert services.snapshot(slug).state == "cancelled"
        wait(lambda: not theirs.live_states())
        assert watched.snapshot(0).state == "cancelled"
        assert theirs.snapshot(slug).state == "cancelled"
        # Its worker is free again, and each server sees what the other one did.
        last = theirs.start_run(script("steps 2"))
        assert end_of(services, last).state == "done"
        theirs.close()


def test_a_run_that_another_server_cancelled_at_its_last_moment_is_not_shown_as_done(services, url):
    with closing(open_database(url)) as database, only_server(database):
        theirs = Services(database, make_client=make_client)
        slug = theirs.start_run(script("hang"))
        wait_until(theirs, slug, lambda view: bool(view.result.variants))
        watched = theirs._unfinished.find(slug)
        services.cancel_run(slug)
        theirs._unfinished.end(slug, "done", "")
        seen = watched.snapshot(0)
        assert (seen.state, seen.reason) == ("cancelled", CANCELLED)
        theirs.close()


def test_a_lock_whose_connection_was_lost_is_taken_again(url, postgresql, monkeypatch):
    monkeypatch.setattr(server_lock, "CHECK_INTERVAL_S", 0.05)
    with closing(open_database(url)) as database, closing(open_database(url)) as other:
        with only_server(database):
            Recorder(database).create(REQUEST)
            lost = lock_holders(postgresql, database.server, "pg_terminate_backend(pid)")
            assert lost == [True]
            wait(lambda: lock_holders(postgresql, database.server, "pid") != [])
            assert Recorder(other).recover("Gone.") == 0
        # PostgreSQL lets go of it once it has seen the end of the connection.
        wait(lambda: lock_holders(postgresql, database.server, "pid") == [])
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


def wait(is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_done():
        assert time.monotonic() < until
        time.sleep(0.01)
