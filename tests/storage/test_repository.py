"""Lists, single parts and what is missing."""

import json
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import event, select, text

from ckv_core.errors import StorageError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.external_selection_json import read_external_selection
from ckv_core.results.records import RetainedSet
from storage import library, repository
from storage.models import Run
from storage.recorder import Recorder
from storage.repository import RunMissingError
from tests.factories.events import big_events
from tests.factories.runs import selection_file
from tests.storage.conftest import START, load, make

OWN = read_external_selection(selection_file([[[0, 2], []], None], "<b>Mine</b>"))


def test_slugs_are_random_and_fit_into_links(database):
    slugs = {make(database) for _ in range(50)}
    assert len(slugs) == 50
    assert all(
        len(slug) == 12 and set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789")
        for slug in slugs
    )


def test_runs_are_listed_newest_first_in_pages(database):
    old, new, middle = (make(database, minutes=at) for at in (0, 20, 10))
    twin = make(database, minutes=10)
    with database.read() as session:
        everything = [run.slug for run in library.list_runs(session)[0]]
        page = [run.slug for run in library.list_runs(session, limit=2, offset=1)[0]]
        assert library.list_runs(session)[1] == 4
        assert library.list_runs(session, offset=4)[0] == []
    assert everything == [new, twin, middle, old]
    assert page == [twin, middle]


def test_a_summary_tells_what_a_list_shows(database):
    slug = make(database, model="some/model")
    with database.read() as session:
        (queued,) = library.list_runs(session)[0]
    assert (queued.title, queued.model_name, queued.state) == ("Title", "some/model", "queued")
    assert (queued.variant_specs, queued.prompt_tokens) == (("full", "snapkv"), None)
    assert queued.created_at == START
    Recorder(database).apply(slug, big_events(tokens=16, variants=3)[0])
    with database.read() as session:
        (prepared,) = library.list_runs(session)[0]
    assert prepared.prompt_tokens == 16
    assert prepared.model_name == "SmolLM2-135M-Instruct"
    assert prepared.variant_specs == tuple(f"snapkv:budget={256 + i}" for i in range(3))


def test_a_list_of_runs_need_not_read_the_positions(database):
    slug = Recorder(database).create(CompareRequest(context="c", own_indices=OWN))
    with database.read() as session:
        (row,) = session.scalars(select(Run.request))
        (listed,) = library.list_runs(session)[0]
    assert "Mine" not in json.dumps(row)
    assert listed.slug == slug


def test_a_run_without_positions_of_its_own_stores_none(database):
    Recorder(database).create(CompareRequest(context="c"))
    with database.read() as session:
        assert session.execute(text("SELECT own_indices FROM prompts")).scalar() is None


def test_times_of_any_zone_are_stored_as_utc(database):
    local = datetime(2026, 3, 1, 23, 30, tzinfo=timezone(timedelta(hours=-5)))
    with database.write() as session:
        slug = repository.create_run(session, CompareRequest(context="c"), "t", local)
    created = load(database, slug).created_at
    assert created == local
    assert created.utcoffset() == timedelta(0)
    with pytest.raises(StorageError, match="time zone"), database.write() as session:
        repository.create_run(session, CompareRequest(context="c"), "t", datetime(2026, 3, 1))


def test_one_kept_set_is_read_without_the_rest(database):
    slug = make(database)
    stream = big_events(tokens=64, variants=2)
    recorder = Recorder(database)
    recorder.apply(slug, stream[0])
    with database.read() as session:
        assert repository.load_retained(session, slug, 0) is None
    for item in stream[1:]:
        recorder.apply(slug, item)
    statements = []
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with database.read() as session:
        kept = repository.load_retained(session, slug, 1)
    assert isinstance(kept, RetainedSet)
    assert kept == stream[3].retained
    assert not any("context" in statement or "head_l1" in statement for statement in statements)
    for index in (2, -1, 10**20):
        with pytest.raises(RunMissingError, match=f"variant {index}"), database.read() as session:
            repository.load_retained(session, slug, index)


@pytest.mark.parametrize("slug", ["abcdefghijkl", "", "' OR 1=1 --", "x" * 10_000])
def test_a_missing_run_is_one_sentence(database, slug):
    make(database)
    with pytest.raises(RunMissingError, match="There is no run"), database.read() as session:
        repository.load_run(session, slug)
    with pytest.raises(RunMissingError, match="There is no run"), database.write() as session:
        library.delete_runs(session, [slug], START)
    with database.read() as session:
        assert library.list_runs(session)[1] == 1
