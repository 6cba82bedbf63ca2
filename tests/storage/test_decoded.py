"""A stored run is decoded once while it is kept, and only what is over is kept."""

import pytest

from ckv_core.records.run_request import RunRequest
from storage import library, repository, rows
from storage.database import Database
from storage.recorder import Recorder
from storage.records import StoredRun
from storage.repository import DecodedRuns
from tests.factories.events import assert_same_result, big_events, folded
from tests.storage.conftest import record

STREAM = big_events(tokens=100, variants=2)
REQUEST = RunRequest(context="word " * 100, question="What?")

pytestmark = pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)


@pytest.fixture
def decodes(monkeypatch) -> list[object]:
    """One item for each variant that is decoded."""
    seen: list[object] = []
    decode = rows.variant_record
    monkeypatch.setattr(rows, "variant_record", lambda *row: seen.append(1) or decode(*row))
    return seen


def load(database: Database, slug: str, kept: DecodedRuns) -> StoredRun:
    return database.read_with(repository.load_run, slug, kept)


def test_a_run_that_is_over_is_decoded_once_until_it_is_forgotten(database, decodes):
    slug, kept = record(database, REQUEST, STREAM), DecodedRuns()
    for _ in range(3):
        run = load(database, slug, kept)
        assert_same_result(run.result, folded(STREAM))
        assert run.request.question == "What?"
    assert len(decodes) == 2
    database.write_with(library.annotate, slug, "Another title", "")
    assert load(database, slug, kept).title == "Another title"
    kept.forget(slug)
    load(database, slug, kept)
    assert len(decodes) == 4


def test_an_unfinished_run_is_read_each_time(database, decodes):
    slug, kept = record(database, REQUEST, STREAM, is_over=False), DecodedRuns()
    load(database, slug, kept)
    Recorder(database).end(slug)
    assert load(database, slug, kept).state == "done"
    assert len(decodes) == 4


def test_what_was_not_used_for_longest_goes_first(database, decodes):
    first, second, third = (record(database, REQUEST, STREAM) for _ in range(3))
    kept = DecodedRuns(most=2)
    for slug in (first, second, first, third, first):
        load(database, slug, kept)
    assert len(decodes) == 6
    load(database, second, kept)
    assert len(decodes) == 8
