"""A server that is killed while it records loses nothing that had returned."""

import os
import signal

import pytest
from sqlalchemy import text

from storage import library
from storage.database import Database, open_database
from storage.recorder import Recorder
from tests.factories.events import assert_same_result, big_events, folded
from tests.processes import python
from tests.storage.conftest import load

SERVER = """
    import sys
    from ckv_core.request.compare_request import CompareRequest
    from storage.database import open_database
    from storage.recorder import Recorder
    from tests.factories.events import big_events
    recorder = Recorder(open_database(sys.argv[1]))
    stream = big_events(tokens=2000, variants=4)
    while True:
        slug = recorder.create(CompareRequest(context="word " * 2000))
        print(slug, "created", flush=True)
        recorder.start(slug)
        print(slug, "started", flush=True)
        for index, event in enumerate(stream):
            recorder.apply(slug, event)
            print(slug, index, flush=True)
        recorder.finish(slug)
        print(slug, "done", flush=True)
    """


@pytest.mark.slow
def test_a_killed_recorder_leaves_a_sound_database_with_all_that_returned(new_url):
    stream = big_events(tokens=2000, variants=4)
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
            run = load(database, slug)
            assert_nothing_is_lost(run, said, stream)
        database.close()


def run_and_kill(url: str, kill_after: int) -> dict[str, list[str]]:
    """What the process had said, by run, when it was killed at work."""
    said: dict[str, list[str]] = {}
    with python(SERVER, url) as process:
        for number, line in enumerate(process.stdout, 1):
            slug, word = line.split()
            said.setdefault(slug, []).append(word)
            if number == kill_after:
                os.kill(process.pid, signal.SIGKILL)
            # Lines that were on their way when the signal came are read too.
    assert process.returncode == -signal.SIGKILL
    return said


def assert_is_sound(database: Database) -> None:
    if database.engine.dialect.name == "sqlite":
        with database.read() as session:
            assert session.scalar(text("PRAGMA integrity_check")) == "ok"


def assert_nothing_is_lost(run, said, stream):
    if "done" in said:
        assert run.state == "done"
        assert_same_result(run.result, folded(stream))
        return
    # Killed between the commit and the line: up to one step more than was said may be there.
    steps = max((int(word) + 1 for word in said if word.isdigit()), default=0)
    possible = [folded(stream[:count]) for count in (steps, steps + 1)]
    if run.state == "failed":
        assert run.reason == "The server stopped."
    else:
        assert (run.state, steps) == ("done", len(stream))
    assert any(same(run.result, result) for result in possible)


def same(left, right) -> bool:
    try:
        assert_same_result(left, right)
    except AssertionError:
        return False
    return True
