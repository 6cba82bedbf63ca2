"""What the recorder writes is what the events fold to, and an end is final."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from ckv_core.errors import StorageError
from ckv_core.records.events import Generated, Progress, VariantFinished
from ckv_core.records.run_request import RunRequest
from storage import library
from storage.database import BUSY_TIMEOUT_S
from storage.recorder import Recorder, title_of
from tests.factories.events import assert_same_result, big_events, folded
from tests.factories.strategies import TEXTS, events, own_variants
from tests.storage.conftest import load, record

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
REQUEST = RunRequest(context="A long text.", question="What?", variants=("full", "snapkv"))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def generated(*texts: str) -> Generated:
    ids = tuple(tuple(range(len(text))) for text in texts)
    return Generated(texts, ids, tuple(tuple(text) for text in texts), (None,) * len(texts))


def started(recorder: Recorder, count: int = 2) -> str:
    slug = recorder.create(REQUEST)
    recorder.start(slug)
    recorder.apply(slug, big_events(tokens=16, variants=count)[0])
    return slug


# Laws of bundles do the same on PostgreSQL, on the way from one database to another.
@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
@given(stream=events())
def test_a_loaded_run_equals_its_folded_events(opened, stream):
    recorder = Recorder(opened, count().__next__)  # a second later each time
    slug = recorder.create(REQUEST)
    recorder.start(slug)
    for event in stream:
        assert recorder.apply(slug, event)
    recorder.end(slug, "cancelled", "Stopped.")
    assert_same_result(load(opened, slug).result, folded(stream))


@given(
    asked=st.builds(
        RunRequest,
        context=TEXTS,
        question=TEXTS,
        answer=TEXTS,
        model=TEXTS,
        scenario=st.sampled_from(["regular", "context-only"]),
        variants=st.lists(TEXTS, max_size=3).map(tuple),
        defaults=st.dictionaries(TEXTS, TEXTS, max_size=2),
        max_new_tokens=st.integers(1, 1024),
        ignore_eos=st.booleans(),
        budgets=st.lists(st.sampled_from(["64", "10%", "4MiB"]), max_size=3).map(tuple),
        analysis=st.lists(st.sampled_from(["bounds", "forced"]), max_size=2).map(tuple),
        follow_ups=st.lists(TEXTS, max_size=2).map(tuple),
        own_indices=st.lists(own_variants(), max_size=2).map(tuple),
    )
)
def test_a_request_is_stored_as_it_was_asked(opened, asked):
    stored = load(opened, Recorder(opened).create(asked))
    assert (stored.request, stored.title) == (asked, title_of(asked))
    assert (stored.state, stored.started_at, stored.result.prompt) == ("queued", None, None)


@pytest.mark.parametrize(
    ("question", "context", "title"),
    [
        ("What  is\nit?", "c", "What is it?"),
        ("", " The report of May. ", "The report of May."),
        ("word " * 50, "c", "word " * 15 + "word…"),
        ("x" * 1_000_000, "c", "x" * 80 + "…"),
        (" ", "\n", "Untitled run"),
    ],
)
def test_title_defaults_to_the_first_words(question, context, title):
    assert title_of(RunRequest(context=context, question=question)) == title


@pytest.mark.parametrize(
    ("state", "reason"), [("done", ""), ("failed", "Why."), ("cancelled", "Why.")]
)
def test_states_go_forward_and_an_end_is_final(database, state, reason):
    recorder = Recorder(database)
    slug = recorder.create(REQUEST, " Mine ")
    assert recorder.start(slug)
    began = load(database, slug).started_at
    assert recorder.start(slug), "its own again"
    before = load(database, slug)
    assert (before.title, before.state, before.started_at) == ("Mine", "running", began)
    assert recorder.apply(slug, Progress("prefill", 0.5, "layer 3"))
    assert load(database, slug) == before
    assert recorder.end(slug, state, reason)
    ended = load(database, slug)
    assert (ended.state, ended.reason) == (state, reason)
    assert ended.created_at <= ended.started_at <= ended.finished_at
    assert ended.finished_at.utcoffset().total_seconds() == 0
    assert not recorder.start(slug)
    for again in ("done", "failed", "cancelled"):
        assert not recorder.end(slug, again, "Second reason.")
    assert not any(recorder.apply(slug, event) for event in big_events(tokens=16, variants=2))
    assert recorder.recover("Restarted.") >= 0
    assert load(database, slug) == ended


def test_text_that_grows_is_written_once_a_second_and_at_its_end(database):
    clock = Clock()
    recorder = Recorder(database, clock)
    slug = started(recorder)
    for clock.now, word, there in [
        (10.0, "a", "a"),
        (10.4, "ab", "a"),
        (10.9, "abc", "a"),
        (11.0, "abcd", "abcd"),
        (11.5, "y", "abcd"),
    ]:
        recorder.apply(slug, generated(word, word))
        assert load(database, slug).result.variants[1].text == there
    recorder.apply(slug, replace(generated("z", "z"), stopped=("eos", "length")))
    assert load(database, slug).result.variants[1].text == "z"
    other = started(recorder)
    for word in ("a", "b"):
        recorder.apply(other, generated(word, word))
    recorder.end(other, "failed", "Died.")
    assert load(database, other).result.variants[1].text == "b", "what came last is there"


def test_a_second_preparation_replaces_the_first(database):
    recorder = Recorder(database)
    slug = started(recorder, count=3)
    stream = big_events(tokens=16, variants=2)
    for event in stream:
        recorder.apply(slug, event)
    assert_same_result(load(database, slug).result, folded(stream))


def test_recover_fails_what_a_dead_server_left_and_keeps_its_parts(database):
    recorder = Recorder(database)
    queued, running, done = recorder.create(REQUEST), started(recorder), started(recorder)
    recorder.apply(running, generated("half", "way"))
    recorder.end(done)
    assert Recorder(database).recover("The server stopped.") == 2
    assert load(database, queued).reason == "The server stopped."
    run = load(database, running)
    assert (run.state, run.reason) == ("failed", "The server stopped.")
    assert run.finished_at is not None
    assert [variant.text for variant in run.result.variants] == ["half", "way"]
    assert load(database, done).state == "done"
    assert recorder.recover("Again.") == 0


@pytest.mark.parametrize("event", [VariantFinished(2, 1.0, None, None), generated("a", "b", "c")])
def test_an_event_for_a_variant_that_is_not_there_is_an_error(database, event):
    recorder = Recorder(database)
    slug = started(recorder)
    with pytest.raises(StorageError, match="variant 2"):
        recorder.apply(slug, event)
    # Nothing of it was kept, and the run goes on.
    assert [variant.text for variant in load(database, slug).result.variants] == ["", ""]
    assert recorder.end(slug)


def test_a_deleted_run_takes_all_with_it_and_its_events_are_passed_over(database):
    recorder = Recorder(database)
    slug, _ = started(recorder), record(database, REQUEST)
    recorder.apply(slug, generated("a", "b"))
    with database.write() as session:
        library.delete_runs(session, [slug], LONG_AGO)
        began = time.monotonic()
        assert load(database, slug).state == "running", "a reader waits for no writer"
        assert time.monotonic() - began < BUSY_TIMEOUT_S
        assert library.purge_deleted(session, LONG_AGO) == 1
    for gone in (slug, "nosuchrun000"):
        assert not any(recorder.apply(gone, event) for event in big_events(16, 2))
        assert not recorder.end(gone)
    with database.read() as session:
        counts = [
            session.scalar(text(f"SELECT count(*) FROM {table}"))
            for table in ("runs", "samples", "results", "arrays")
        ]
    assert counts == [1, 1, 2, 12]
