"""What pages see when the worker, the server or the disk fails."""

import os
import signal
import time

import pytest
from sqlalchemy import text

from ckv_core.errors import CkvError, StorageError
from storage import repository
from storage.recorder import Recorder
from tests.factories.app import (
    ENDLESS,
    TIMEOUT_S,
    end_of,
    generating,
    make_client,
    script,
    wait_until,
    worker_pid,
)
from ui.services.services import Services


def test_an_unresponsive_run_is_cancelled_by_force(services):
    slug = services.start_run(script("hang"))
    wait_until(services, slug, lambda view: bool(view.result.variants))
    services.cancel_run(slug)
    assert end_of(services, slug).state == "cancelled"


def test_a_killed_worker_fails_its_run_with_a_reason_and_the_next_run_works(services):
    first, second = services.start_run(script(ENDLESS)), services.start_run(script("steps 2"))
    wait_until(services, first, generating)
    pid = worker_pid(services)
    os.kill(pid, signal.SIGKILL)
    end = end_of(services, first)
    assert end.state == "failed"
    assert "SIGKILL" in end.reason
    assert end.result.variants[0].text.startswith("w0 ")
    assert end_of(services, second).state == "done"
    assert worker_pid(services) != pid


def test_runs_of_a_dead_server_are_failed_with_the_reason_at_the_next_start(file_database):
    slug = Recorder(file_database).create(script("steps 1"))
    services = Services(file_database, make_client=make_client)
    view = services.snapshot(slug)
    services.close()
    assert view.state == "failed"
    assert "app stopped before" in view.reason


def test_close_cancels_what_is_unfinished_and_refuses_new_runs(file_database):
    services = Services(file_database, make_client=make_client)
    running, queued = services.start_run(script("hang")), services.start_run(script(ENDLESS))
    wait_until(services, running, lambda view: bool(view.result.variants))
    services.close()
    for slug in (running, queued):
        view = services.snapshot(slug)
        assert (view.state, view.reason) == (
            "cancelled",
            "The app was closed before this run ended.",
        )
    with pytest.raises(CkvError, match="closing"):
        services.start_run(script("steps 1"))


def test_a_disk_that_fills_up_fails_the_run_and_the_app_lives_on(new_services, file_database):
    slug = new_services.start_run(script(ENDLESS))
    wait_until(new_services, slug, generating)
    with file_database.write() as session:
        # SQLite checks these triggers at every write, as it would a full disk.
        for table in ("runs", "variants"):
            session.execute(
                text(
                    f"CREATE TRIGGER full_{table} BEFORE UPDATE ON {table} "
                    "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
                )
            )
    end = end_of(new_services, slug)
    assert end.state == "failed"
    assert "is full; free some space" in end.reason
    assert new_services.snapshot(slug).reason == end.reason
    with file_database.write() as session:
        session.execute(text("DROP TRIGGER full_runs"))
        session.execute(text("DROP TRIGGER full_variants"))
    later = new_services.start_run(script("steps 2"))
    assert end_of(new_services, later).state == "done"
    # The end that could not be recorded then is recorded now.
    deadline = time.monotonic() + TIMEOUT_S
    while new_services.count_by_state() != {"done": 1, "failed": 1}:
        assert time.monotonic() < deadline, new_services.count_by_state()
        time.sleep(0.01)
    with file_database.read() as session:
        stored = repository.load_run(session, slug)
    assert (stored.state, stored.reason) == ("failed", end.reason)
    new_services.library.delete([slug])
    with pytest.raises(StorageError, match="no run"):
        new_services.snapshot(slug)
