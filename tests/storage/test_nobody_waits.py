"""A start waits for nobody's import, export, backup or deletion; a clock's jump prunes nothing."""

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import delete

from ckv_core.errors import StorageError
from ckv_core.records.events import RunFinished
from storage import audit, bundle, credentials, database, library, recorder, sqlite
from storage.bundle import import_bundle, runs_of, write_bundle
from storage.library import list_runs, purge_deleted, restore_runs
from storage.models import AuditEntry, Credential
from storage.recorder import Recorder
from storage.records import RunFilter
from storage.sqlite import copy_database, sqlite_file
from tests.storage.bundles import REQUEST, exported, made, run_count
from tests.storage.test_studies import SAMPLES, STUDY, results_of

RUNS = 6
EACH_S = 0.25  # of what is slow about each of these runs; a single write of all takes too long
MOST_S = 1.0


@contextmanager
def slow_reading(_: bytes):
    """Runs that take their time, as large ones do."""
    yield (time.sleep(EACH_S) or run for run in slow_reading.runs)


def slowly(function):
    return lambda *values: (time.sleep(EACH_S), function(*values))[1]


def do_import(here, there, monkeypatch):
    (run,) = runs_of(exported(there, made(there)))
    names = [f"{at}" * 12 for at in range(RUNS)]
    slow_reading.runs = [replace(run, run=replace(run.run, slug=slug)) for slug in names]
    monkeypatch.setattr(bundle, "reading", slow_reading)
    return partial(import_bundle, here, b"")


def do_delete(here, _, monkeypatch, slugs=None):
    slugs = slugs or [made(here) for _ in range(RUNS)]
    now = datetime.now(UTC)
    here.write_with(library.delete_runs, slugs, now)
    monkeypatch.setattr(library, "delete", slowly(library.delete))

    def purge() -> None:
        left = 1
        while left:
            with here.write_in_turn() as session:
                left = purge_deleted(session, now)

    return purge


def do_delete_samples(here, there, monkeypatch):
    studies = Recorder(here)
    slug = studies.save(STUDY, SAMPLES)
    for sample in SAMPLES:
        studies.commit(slug, results_of(sample))
    monkeypatch.setattr(library, "_RESULTS_AT_ONCE", 5)
    return do_delete(here, there, monkeypatch, [slug])


def do_save_samples(here, _, monkeypatch):
    many = [replace(SAMPLES[0], id=f"s{at}", context=f"text {at}") for at in range(RUNS)]
    monkeypatch.setattr(recorder, "_CHARS_AT_ONCE", 1)
    insert = recorder._insert_samples

    def slow_insert(session, slug, portion) -> None:
        insert(session, slug, portion)
        time.sleep(EACH_S * len(portion))

    monkeypatch.setattr(recorder, "_insert_samples", slow_insert)
    return partial(Recorder(here).save, replace(STUDY, name="many"), many)


def do_export(here, _, monkeypatch):
    slugs = [made(here) for _ in range(RUNS)]
    monkeypatch.setattr("storage.bundle._run_data", lambda *_, **__: time.sleep(EACH_S) or b"{}")
    return partial(here.read_with, write_bundle, slugs)


def do_back_up(here, _, monkeypatch):
    if here.server is not None:
        return partial(time.sleep, EACH_S)
    monkeypatch.setattr(sqlite, "_copy", slowly(sqlite._copy))
    file = sqlite_file(here.engine.url)
    return partial(copy_database, file, file.with_name("copy"))


@pytest.mark.parametrize(
    "act", [do_import, do_save_samples, do_delete, do_delete_samples, do_export, do_back_up]
)
def test_a_start_waits_for_nobody(here, there, monkeypatch, act):
    do = act(here, there, monkeypatch)
    recorder, waited, over = Recorder(here), [], threading.Event()

    def start() -> None:
        while not over.is_set():
            begin = time.monotonic()
            recorder.create(REQUEST)
            waited.append(time.monotonic() - begin)
            time.sleep(0.05)

    starting = threading.Thread(target=start)
    starting.start()
    begin = time.monotonic()
    try:
        do()
    finally:
        over.set()
        starting.join()
    # On a machine with nothing else to do, none waits for a second.
    assert max(waited) < max(MOST_S, (time.monotonic() - begin) / 3)
    assert len(waited) >= 2


def test_an_import_appears_at_once_or_leaves_nothing(here, there, monkeypatch):
    (run,) = runs_of(exported(there, made(there)))
    runs = [replace(run, run=replace(run.run, slug=slug * 12)) for slug in "ab"]

    @contextmanager
    def reading(_: bytes):
        def one_by_one():
            yield runs[0]
            assert run_count(here) == 1
            assert here.read_with(list_runs, RunFilter())[1] == 0
            before = datetime.now(UTC) - timedelta(minutes=10)
            assert here.write_with(restore_runs, ["a" * 12], before) == []
            yield runs[1]
            if breaks:
                raise StorageError("The disk is gone.")

        yield one_by_one()

    monkeypatch.setattr(bundle, "reading", reading)
    breaks = True
    with pytest.raises(StorageError, match="disk is gone"):
        import_bundle(here, b"")
    assert run_count(here) == 0
    breaks = False
    import_bundle(here, b"")
    assert here.read_with(list_runs, RunFilter())[1] == 2


def test_a_recorder_tries_again_while_another_program_holds_the_database(here, monkeypatch):
    if here.server is not None:  # PostgreSQL locks rows, not all
        return
    recorder = Recorder(here)
    slug = recorder.create(REQUEST)
    here.close()  # no connection is left
    held = here.write()
    held.__enter__().connection()  # takes the lock
    with here.read() as session:  # this second connection is the recorder's, too
        session.connection().exec_driver_sql("PRAGMA busy_timeout = 10")
    timer = threading.Timer(0.3, held.__exit__, (None, None, None))
    monkeypatch.setattr(database, "BUSY_TRIES", 500)
    timer.start()
    assert recorder.start(slug)
    assert recorder.apply(slug, RunFinished({}))
    timer.join()
    here.close()  # the next tests' connections wait again


def test_a_clock_that_jumps_forward_prunes_nothing(here, monkeypatch):
    today = datetime(2026, 11, 23, tzinfo=UTC)

    class Clock(datetime):
        at = today

        @classmethod
        def now(cls, _):
            return cls.at

    def act(*days: int) -> None:
        for day in days:
            Clock.at = today + timedelta(days=day)
            here.write_with(audit.record, "ann", "signed in")
            here.write_with(credentials.purge, Clock.at)

    def known() -> tuple[int, int]:
        with here.read() as session:
            entries = audit.list_entries(session, 1000)
            return len(entries), len(credentials.list_credentials(session))

    monkeypatch.setattr(audit, "datetime", Clock)
    with here.write() as session:
        for table in (AuditEntry, Credential):
            session.execute(delete(table))
    values = {"owner": "ann", "scope": "all"}
    here.write_with(credentials.create, None, "session", now=today, days=10, **values)
    act(0, 1, 4000, 4001, 4002)
    assert known() == (6, 1)
    act(*range(4003, 4040, 5))
    assert known() == (14, 0)  # a month went by, if at another time than it was
    act(*range(4040, 4400, 20))
    assert known()[0] < 31
