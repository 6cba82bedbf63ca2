"""What the recorder writes is what the events fold to, and an end is final."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from ckv_core.errors import StorageError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import Generated, Progress, VariantFinished
from storage import library
from storage.database import BUSY_TIMEOUT_S, Database
from storage.recorder import Recorder, title_of
from tests.factories.events import assert_same_result, big_events, folded
from tests.factories.strategies import TEXTS, events, own_variants
from tests.storage.conftest import at_once, load, record

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
REQUEST = CompareRequest(context="A long text.", question="What?", variants=("full", "snapkv"))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def purge(database: Database, slug: str) -> None:
    with database.write() as session:
        library.delete_runs(session, [slug], LONG_AGO)
        assert library.purge_deleted(session, LONG_AGO) == 1


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
    recorder = Recorder(opened)
    slug = recorder.create(REQUEST)
    recorder.start(slug)
    for event in stream:
        assert recorder.apply(slug, event)
    recorder.cancel(slug, "Stopped.")  # writes text that was held back
    assert_same_result(load(opened, slug).result, folded(stream))


@given(
    asked=st.builds(
        CompareRequest,
        context=TEXTS,
        question=TEXTS,
        answer=TEXTS,
        model=TEXTS,
        scenario=st.sampled_from(["regular", "context-only"]),
        variants=st.lists(TEXTS, max_size=3).map(tuple),
        defaults=st.dictionaries(TEXTS, TEXTS, max_size=2),
        max_new_tokens=st.integers(1, 1024),
        ignore_eos=st.booleans(),
        kind=st.sampled_from(["compare", "sweep"]),
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
    assert title_of(CompareRequest(context=context, question=question)) == title


def test_states_go_forward_and_carry_their_times(database):
    recorder = Recorder(database)
    slug = recorder.create(REQUEST, " Mine ")
    assert recorder.start(slug)
    assert not recorder.start(slug)
    assert load(database, slug).state == "running"
    assert recorder.finish(slug)
    run = load(database, slug)
    assert (run.title, run.state, run.reason) == ("Mine", "done", "")
    assert run.created_at <= run.started_at <= run.finished_at
    assert run.finished_at.utcoffset().total_seconds() == 0


@pytest.mark.parametrize("end", ["finish", "fail", "cancel"])
def test_an_end_state_is_final(database, end):
    recorder = Recorder(database)
    slug = started(recorder)
    reason = [] if end == "finish" else ["First reason."]
    assert getattr(recorder, end)(slug, *reason)
    before = load(database, slug)
    assert not recorder.start(slug)
    assert not recorder.finish(slug)
    assert not recorder.fail(slug, "Second reason.")
    assert not recorder.cancel(slug, "Third reason.")
    assert not any(recorder.apply(slug, event) for event in big_events(tokens=16, variants=2))
    assert recorder.recover("Restarted.") >= 0
    after = load(database, slug)
    assert_same_result(after.result, before.result)
    assert replace(after, result=before.result) == before


def test_generated_text_is_written_once_a_second_and_before_the_end(database):
    clock = Clock()
    recorder = Recorder(database, clock)
    slug = started(recorder)
    seen = []
    for clock.now, word in [(10.0, "a"), (10.4, "ab"), (10.9, "abc"), (11.0, "abcd"), (11.5, "z")]:
        recorder.apply(slug, generated(word, word))
        seen.append(load(database, slug).result.variants[1].text)
    assert seen == ["a", "a", "a", "abcd", "abcd"]
    recorder.fail(slug, "Died.")
    assert load(database, slug).result.variants[1].text == "z"


def test_held_text_is_written_with_the_next_event_of_another_kind(database):
    clock = Clock()
    recorder = Recorder(database, clock)
    slug = started(recorder)
    recorder.apply(slug, generated("a", "b"))
    recorder.apply(slug, generated("aa", "bb"))
    recorder.apply(slug, VariantFinished(0, 1.0, None, None))
    assert [v.text for v in load(database, slug).result.variants] == ["aa", "bb"]


def test_progress_is_not_stored(database):
    recorder = Recorder(database)
    slug = recorder.create(REQUEST)
    before = load(database, slug)
    assert recorder.apply(slug, Progress("prefill", 0.5, "layer 3"))
    assert load(database, slug) == before


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
    recorder.finish(done)
    assert Recorder(database).recover("The server stopped.") == 2
    assert load(database, queued).reason == "The server stopped."
    run = load(database, running)
    assert (run.state, run.reason) == ("failed", "The server stopped.")
    assert run.finished_at is not None
    assert [variant.text for variant in run.result.variants] == ["half", "way"]
    assert load(database, done).state == "done"
    assert recorder.recover("Again.") == 0


def test_events_of_a_deleted_or_unknown_run_are_passed_over(database):
    recorder = Recorder(database)
    slug = started(recorder)
    recorder.apply(slug, generated("a", "b"))
    purge(database, slug)
    assert not recorder.apply(slug, big_events(16, 2)[0])
    assert not recorder.apply(slug, generated("aa", "bb"))
    assert not recorder.apply("nosuchrun000", big_events(16, 1)[0])
    assert not recorder.finish(slug)


@pytest.mark.parametrize("event", [VariantFinished(2, 1.0, None, None), generated("a", "b", "c")])
def test_an_event_for_a_variant_that_is_not_there_is_an_error(database, event):
    recorder = Recorder(database)
    slug = started(recorder)
    with pytest.raises(StorageError, match="variant 2"):
        recorder.apply(slug, event)
    # Nothing of it was kept, and the run goes on.
    assert [variant.text for variant in load(database, slug).result.variants] == ["", ""]
    assert recorder.finish(slug)


def test_deleting_a_run_deletes_all_that_hangs_on_it(database):
    gone, _ = record(database, REQUEST), record(database, REQUEST)
    purge(database, gone)
    with database.read() as session:
        counts = [
            session.scalar(text(f"SELECT count(*) FROM {table}"))
            for table in ("runs", "samples", "results", "arrays")
        ]
    assert counts == [1, 1, 2, 12]


def test_threads_record_different_runs_at_once(database):
    recorder = Recorder(database)
    stream = big_events(tokens=64, variants=2)
    slugs = [recorder.create(REQUEST) for _ in range(6)]

    def play(slug: str) -> bool:
        return all(recorder.apply(slug, event) for event in stream) and recorder.finish(slug)

    assert at_once(*(partial(play, slug) for slug in slugs)) == [True] * 6
    for slug in slugs:
        assert load(database, slug).state == "done"
        assert_same_result(load(database, slug).result, folded(stream))


def test_reading_does_not_wait_for_a_writer(database):
    slug = started(Recorder(database))
    with database.write() as session:
        library.delete_runs(session, [slug], LONG_AGO)
        began = time.monotonic()
        assert load(database, slug).state == "running"
        assert time.monotonic() - began < BUSY_TIMEOUT_S
        session.rollback()
