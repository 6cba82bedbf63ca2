"""Lists, single parts, what is missing; how fast and how small a long run is."""

import json
import math
import sys
import time
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import event, select, text

from ckv_core.errors import StorageError
from ckv_core.records.external_selection import read_external_selection
from ckv_core.records.records import RetainedSet
from ckv_core.records.run_request import RunRequest
from storage import library, repository
from storage.models import Run
from storage.recorder import Recorder, create_run
from storage.repository import RunMissingError
from tests.factories.events import assert_same_result, big_events, folded
from tests.factories.runs import selection_file
from tests.storage.conftest import START, load, make, record

OWN = read_external_selection(selection_file([[[0, 2], []], None], "<b>Mine</b>"))
SIZES = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "postgresql": "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace",
}


def test_a_summary_tells_what_a_list_shows(database):
    slug = make(database, model="some/model")
    (queued,) = database.read_with(library.list_runs)[0]
    assert (queued.title, queued.model_name, queued.state) == ("Title", "some/model", "queued")
    assert (queued.variant_specs, queued.prompt_tokens) == (("full", "snapkv"), None)
    assert queued.created_at == START
    Recorder(database).apply(slug, big_events(tokens=16, variants=3)[0])
    (prepared,) = database.read_with(library.list_runs)[0]
    assert prepared.prompt_tokens == 16
    assert prepared.model_name == "SmolLM2-135M-Instruct"
    assert prepared.variant_specs == tuple(f"snapkv:budget={256 + i}" for i in range(3))


def test_a_list_of_runs_need_not_read_the_positions(database):
    slugs = [make(database, own_indices=OWN), make(database)]
    with database.read() as session:
        requests = session.scalars(select(Run.request)).all()
        stored = session.scalars(text("SELECT own_indices FROM samples ORDER BY run_id")).all()
        listed = [run.slug for run in library.list_runs(session)[0]]
    assert sorted(listed) == sorted(slugs)
    assert "Mine" not in json.dumps(requests)
    assert [bool(each) for each in stored] == [True, False]


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
