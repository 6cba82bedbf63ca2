"""A server that is killed while it records loses nothing that had returned."""

import signal
from itertools import count
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import text

from ckv_core.records.run_request import RunRequest
from storage import library
from storage.database import Database, open_database
from storage.recorder import Recorder
from tests.factories.events import assert_same_result, big_events, folded
from tests.processes import forked
from tests.storage.conftest import load

STREAM = big_events(tokens=2000, variants=4)


def serve(url: str, told: Connection) -> None:
    """Record one run after another, and tell what has returned."""
    recorder = Recorder(open_database(url))
    while True:
        slug = recorder.create(RunRequest(context="word " * 2000))
        told.send((slug, "created"))
        recorder.start(slug)
        told.send((slug, "started"))
        for index, event in enumerate(STREAM):
            recorder.apply(slug, event)
            told.send((slug, index))
        recorder.end(slug)
        told.send((slug, "done"))


@pytest.mark.slow
def test_a_killed_recorder_leaves_a_sound_database_with_all_that_returned(new_url):
    # Killed after so many lines: while creating, in the middle of a run, in the second run.
    for kill_after in (1, 9, 31):
        url = new_url()
        reported = run_and_kill(url, kill_after)
        database = open_database(url)
        assert_is_sound(database)
        with database.read() as session:
            unfinished = [
                run.slug
                for run in library.list_runs(session)[0]
                if run.state in ("queued", "running")
            ]
        assert Recorder(database).recover("The server stopped.") == len(unfinished)
        for slug, said in reported.items():
            assert_nothing_is_lost(load(database, slug), said)
        database.close()


def run_and_kill(url: str, kill_after: int) -> dict[str, list[str | int]]:
    """What the process had said, by run, when it was killed at work."""
    said: dict[str, list[str | int]] = {}
    with forked(serve, url) as (process, told):
        for number in count(1):
            try:
                slug, word = told.recv()
            except EOFError:  # what was on its way when the signal came was read too
                break
            said.setdefault(slug, []).append(word)
            if number == kill_after:
                process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    return said


def assert_is_sound(database: Database) -> None:
    if database.engine.dialect.name == "sqlite":
        with database.read() as session:
            assert session.scalar(text("PRAGMA integrity_check")) == "ok"


def assert_nothing_is_lost(run, said):
    if "done" in said:
        assert run.state == "done"
        assert_same_result(run.result, folded(STREAM))
        return
    # Killed between the commit and the line: up to one step more than was said may be there.
    steps = max((word + 1 for word in said if isinstance(word, int)), default=0)
    if run.state == "failed":
        assert run.reason == "The server stopped."
    else:
        assert (run.state, steps) == ("done", len(STREAM))
    try:
        assert_same_result(run.result, folded(STREAM[:steps]))
    except AssertionError:
        assert_same_result(run.result, folded(STREAM[: steps + 1]))
