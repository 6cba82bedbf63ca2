"""Lists, single parts, what is missing; how fast and how small a long run is."""

import math
import sys
import time
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import event, text

from ckv_core.errors import StorageError
from ckv_core.records.records import RetainedSet
from ckv_core.records.run_request import RunRequest
from storage import repository
from storage.recorder import Recorder, create_run
from storage.repository import RunMissingError
from tests.factories.events import assert_same_result, big_events, folded
from tests.storage.conftest import load, make, record

SIZES = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "postgresql": "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace",
}


def test_times_of_any_zone_are_stored_as_utc(database):
    local = datetime(2026, 3, 1, 23, 30, tzinfo=timezone(timedelta(hours=-5)))
    slug = database.write_with(create_run, RunRequest(context="c"), "t", local)
    created = load(database, slug).created_at
    assert created == local
    assert created.utcoffset() == timedelta(0)
    with pytest.raises(StorageError, match="time zone"):
        database.write_with(create_run, RunRequest(context="c"), "t", datetime(2026, 3, 1))


def test_one_kept_set_is_read_without_the_rest(database):
    slug = make(database)
    stream = big_events(tokens=64, variants=2)
    recorder = Recorder(database)
    recorder.apply(slug, stream[0])
    assert database.read_with(repository.load_retained, slug, 0) is None
    for item in stream[1:]:
        recorder.apply(slug, item)
    statements = []
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    kept = database.read_with(repository.load_retained, slug, 1)
    assert isinstance(kept, RetainedSet)
    assert kept == stream[3].retained
    assert not any("context" in statement or "head_l1" in statement for statement in statements)
    for index in (2, -1, 10**20):
        with pytest.raises(RunMissingError, match=f"variant {index}"):
            database.read_with(repository.load_retained, slug, index)


def test_an_8k_run_of_eight_variants_opens_fast_and_stays_small(database):
    stream = big_events()
    slug = record(database, RunRequest(context="word " * 8000, question="What?"), stream)
    seconds = math.inf
    for _ in range(3):  # the best of three, as the machine may be busy with something else
        began = time.perf_counter()
        run = load(database, slug)
        seconds = min(seconds, time.perf_counter() - began)
    assert_same_result(run.result, folded(stream))
    with database.read() as session:
        megabytes = session.scalar(text(SIZES[database.engine.dialect.name])) / 1e6
    sys.stdout.write(f"loaded in {seconds * 1000:.0f} ms, database {megabytes:.2f} MB\n")
    assert seconds < 1.0
    assert megabytes < 2.0
