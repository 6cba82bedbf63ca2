"""Server and worker are killed at random moments; what was reported as saved is there."""

import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from multiprocessing.connection import Connection

import psutil
import psycopg
import pytest
from sqlalchemy import make_url

from storage import library, repository
from storage.database import open_database
from storage.recorder import Recorder
from tests.processes import assert_gone
from tests.reliability.killed_server import STEPS, work

# `make soak` asks for more. Every other kill on SQLite is the worker's; what a server does then is
# the same on PostgreSQL, where servers only are killed.
SOAK = int(os.environ.get("CKV_SOAK", "1"))
ROUNDS = {"sqlite": 8 * SOAK, "postgresql": 4 * SOAK}
SEED = random.SystemRandom().randrange(10**6)
DONE_TEXT = "".join(f"w{step} " for step in range(STEPS))
PATIENCE_S = 90
RECOVERED = "The app stopped before the end."

# Children come from a process that has imported everything, so a round takes no imports.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.reliability.killed_server"])


class Server:
    """One server process and all that it has reported."""

    def __init__(self, url: str, reported: dict[str, tuple[str, str]]) -> None:
        self.reports, theirs = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=work, args=(url, theirs))
        self.process.start()
        theirs.close()
        self.reported = reported
        self.worker = 0

    def listen(self, seconds: float) -> None:
        """Take reports for so long, or until it is dead."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self.reports.poll(left):
            if not take(self.reports, self):
                return

    def wait_for_ends(self, more: int) -> None:
        """Until so many more runs have ended.

        Raises:
            AssertionError: they did not; a run is stuck.
        """
        wanted = len(self.reported) + more
        until = time.monotonic() + PATIENCE_S
        while len(self.reported) < wanted:
            assert time.monotonic() < until, "no run ended: one is stuck"
            self.listen(0.2)

    def kill(self) -> list[int]:
        """SIGKILL; its workers, which must follow."""
        workers = [child.pid for child in psutil.Process(self.process.pid).children()]
        self.process.kill()
        self.process.join()
        while take(self.reports, self):
            pass  # what was on its way when the signal came
        return workers


def take(reports: Connection, server: Server) -> bool:
    """One report; False at the end of all."""
    try:
        name, state, text = reports.recv()
    except EOFError:
        return False
    if state == "worker":
        server.worker = name
    elif state != "started":
        server.reported[name] = (state, text)
    return True


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_nothing_reported_and_leaves_no_run_stuck(new_url):
    moments = random.Random(SEED)
    url = new_url()
    backend = make_url(url).get_backend_name()
    print(f"seed {SEED}, {ROUNDS[backend]} kills, {backend}")
    reported: dict[str, tuple[str, str]] = {}
    killed = Counter()
    server = Server(url, reported)
    server.wait_for_ends(1)
    for number in range(ROUNDS[backend]):
        server.listen(moments.uniform(0.0, 0.4))
        hits_worker = backend == "sqlite" and number % 2
        if hits_worker and server.worker and psutil.pid_exists(server.worker):
            os.kill(server.worker, signal.SIGKILL)
            killed["worker"] += 1
            server.wait_for_ends(2)  # the one that was hit, and one by the next worker
            continue
        workers = server.kill()
        killed["server"] += 1
        wait_until_noticed(url)
        assert_sound(url)
        assert_gone(workers)
        server = Server(url, reported)
        server.wait_for_ends(1)  # the next server works, so it has recovered
    assert_gone(server.kill())
    wait_until_noticed(url)
    assert_nothing_is_lost(url, reported)
    states = Counter(state for state, _ in reported.values())
    print(f"killed {dict(killed)}; reported {dict(states)}")
    assert killed["server"]
    assert killed["worker"] or backend != "sqlite"
    assert states["done"]


def wait_until_noticed(url: str) -> None:
    """Until PostgreSQL has let go of a dead server's lock, once it saw the connection's end."""
    if url.startswith("sqlite"):
        return
    until = time.monotonic() + PATIENCE_S
    held = (
        "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
        "WHERE locktype = 'advisory' AND datname = current_database()"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(held).fetchone() != (0,):
            assert time.monotonic() < until
            time.sleep(0.01)


def assert_sound(url: str) -> None:
    """What SQLite finds in its file; PostgreSQL checks its pages and keys itself."""
    path = make_url(url).database
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path)) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert raw.execute("PRAGMA foreign_key_check").fetchall() == []


def assert_nothing_is_lost(url: str, reported: dict[str, tuple[str, str]]) -> None:
    """Every run has ended; those whose end was reported are as reported."""
    with closing(open_database(url)) as database:
        # What the server that was killed last left behind.
        assert Recorder(database).recover(RECOVERED) <= 1
        with database.read() as session:
            rows, total = library.list_runs(session, limit=10**6)
            assert total == len(rows)
            assert reported.keys() <= {row.slug for row in rows}
            runs = [repository.load_run(session, row.slug) for row in rows]
    for run in runs:
        text = run.result.variants[0].text if run.result.variants else ""
        if run.slug in reported:
            assert (run.state, text) == reported[run.slug]
        if run.state == "done":
            assert text == DONE_TEXT
        else:
            assert run.state == "failed"
            assert run.reason
