"""The library: what a filter finds, in which order, and what annotations and deletion do."""

from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import timedelta
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import JSON, LargeBinary, String, event, select, type_coerce, update

from ckv_core.errors import StorageError
from ckv_core.records.outcomes import tally
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import RunRequest
from storage import library, repository
from storage.database import Database
from storage.models import AnyText, Array, ResultRow, Run, SampleRow
from storage.recorder import Recorder, create_run
from storage.records import RunFilter, RunNotes
from storage.repository import RunMissingError
from storage.rows import result_columns
from storage.usage import ROW_BYTES, usage_by_owner, usage_of
from tests.factories.events import big_events
from tests.storage.conftest import START, make, record
from tests.storage.test_studies import MODEL, SAMPLES, STUDY, results_of


def found(database, sort="newest", **wanted) -> list[str]:
    runs, total = database.read_with(library.list_runs, RunFilter(**wanted), sort)
    assert total == len(runs)
    return [run.slug for run in runs]


def annotate(database, slug: str, title="T", note="") -> None:
    database.write_with(library.annotate, slug, title, note)


def test_search_finds_title_note_question_and_generation(database):
    slug = make(database, "Harbour study", question="Which SHIP left?")
    make(database, "Other")
    recorder = Recorder(database)
    for item in big_events(tokens=16, variants=1):
        recorder.apply(slug, item)
    assert found(database, text="token63") == []
    recorder.end(slug)
    annotate(database, slug, "Harbour study", "Straße, see Fig. 3")
    for asked in ("harb", "ship", "STRASSE", "token63", "study harbour fi", "3 left"):
        assert found(database, text=asked) == [slug], asked
    assert found(database, text="harbour missing") == []
    assert found(database, text="arbour") == []


def test_a_text_that_grows_when_it_is_folded_is_indexed_as_far_as_there_is_room(database):
    # U+337F becomes four characters of three bytes each: 1.5 MB of different words.
    question = " ".join(f"{number:05}" + "\u337f" * 8 for number in range(14_000))
    slug = make(database, "Harbour", question=question)
    assert found(database, text="harbour 00000") == [slug]
    assert found(database, text="13999") == []


@given(asked=st.text(max_size=30) | st.text("\"*()^:-+ ANDORTNE'\\&|!<>\x00", max_size=20))
def test_no_query_text_can_raise(opened, asked):
    opened.read_with(library.list_runs, RunFilter(text=asked))


def test_a_word_among_signs_is_found_as_a_word(database):
    for asked in ("a*", "title:x", "NEAR(a b)", "a' OR '1", "x\x00y", "é" * 9):
        slug = make(database, f"start {asked} end")
        assert slug in found(database, text=asked), asked


def test_every_filter_keeps_its_runs_only(database):
    slug = make(database, minutes=5, model="a/b")
    other = make(database, minutes=9)
    recorder = Recorder(database)
    recorder.start(slug)
    for item in big_events(tokens=16, variants=1)[:2]:
        recorder.apply(slug, item)
    for wanted in (
        {"model": "SmolLM2-135M-Instruct", "state": "running", "kind": "compare"},
        {"method": "snapkv"},
        {"until": START + timedelta(minutes=9)},
    ):
        assert found(database, **wanted) == [slug], wanted
    assert found(database, since=START + timedelta(minutes=6)) == [other]
    for wanted in ({"kind": "sweep"}, {"method": "adakv"}):
        assert found(database, **wanted) == []


def some_ends() -> Iterator[list[VariantResult]]:
    """Variants of a run in every state that they can be in, alone and together."""
    judged = product(("eos", "length"), (None, True, False), (None, (1.0, None), (0.5, 3)))
    states = [(None, None, None), *judged]
    draw = Random(0)
    for methods in (("full",), ("snapkv",), *[("full", "snapkv", "adakv", "knorm")] * 30):
        rows = []
        for method, (stopped, found, same) in zip(methods, draw.sample(states, 4), strict=False):
            named = {"spec": method, "label": method, "method": method, "critical": False}
            agreement, differs = same or (None, None)
            more = {"agreement": agreement, "first_difference": differs, "answer_found": found}
            rows.append(VariantResult(**named, stopped=stopped, **more))
        yield rows


def test_a_list_counts_what_the_variants_of_a_run_tell(database):
    """By SQL what `tally` counts; in a failed run what evicts and had not finished failed too."""
    expected, kept, lost = {}, set(), set()
    with database.write() as session:
        for at, variants in enumerate(some_ends()):
            state = ("done", "failed")[at % 2]
            slug = create_run(session, RunRequest(context="c"), "Title", START)
            run_id = repository.key_of(session, slug)
            for place, each in enumerate(variants):
                columns = result_columns({f.name: getattr(each, f.name) for f in fields(each)})
                row = ResultRow(run_id=run_id, sample="", budget="", position=place, **columns)
                session.add(row)
            session.execute(update(Run).where(Run.id == run_id).values(state=state))
            why = "It failed." if state == "failed" else ""
            expected[slug] = tally(
                replace(each, failure="" if each.stopped or each.method == "full" else why)
                for each in variants
            )
            if expected[slug].missed:
                lost.add(slug)
            elif expected[slug].answered:
                kept.add(slug)
    runs, total = database.read_with(library.list_runs, limit=100)
    assert total == len(runs)
    assert {run.slug: run.outcome for run in runs} == expected
    assert {*found(database, answer="lost")} == lost
    assert {*found(database, answer="kept")} == kept
    assert len(found(database, answer="else")) == total


def test_runs_are_listed_in_each_order_page_by_page(database):
    first = make(database, "b", 0)
    second = make(database, "A", 1)
    third = make(database, "c", 2)
    twin = make(database, "d", 2)
    assert found(database) == [twin, third, second, first]
    page, total = database.read_with(library.list_runs, limit=2, offset=1)
    assert ([run.slug for run in page], total) == ([third, second], 4)
    assert database.read_with(library.list_runs, offset=4) == ([], 4)
    assert found(database, "oldest") == [first, second, third, twin]
    assert found(database, "title") == [second, first, third, twin]


def test_annotations_are_listed_and_bounded(database):
    slug = make(database)
    annotate(database, slug, " New ", "note\x00")
    with database.read() as session:
        (run,), _ = library.list_runs(session)
        notes = repository.load_notes(session, slug)
        with pytest.raises(RunMissingError):
            repository.load_notes(session, "nope")
    assert (run.title, run.note) == ("New", "note\x00")
    assert notes == RunNotes("note\x00")
    refused = [
        ({"title": "x" * 201}, "1 to 200 characters"),
        ({"title": " "}, "1 to 200 characters"),
        ({"note": "x" * 10_001}, "up to 10,000 characters"),
    ]
    for changes, sentence in refused:
        with pytest.raises(StorageError, match=sentence):
            annotate(database, slug, **changes)
    annotate(database, slug, "x" * 200, "x" * 10_000)


def test_a_deleted_run_is_gone_everywhere_until_it_is_restored(database):
    slug = make(database, "Harbour")
    other = make(database)
    for missing in ("abcdefghijkl", "", "' OR 1=1 --", "x" * 10_000):
        with pytest.raises(RunMissingError, match="There is no run"):
            database.write_with(library.delete_runs, [slug, missing], START)
    database.write_with(library.delete_runs, [slug], START)
    assert found(database) == [other]
    assert found(database, text="harbour") == []
    for load in (repository.load_run, repository.run_owner):
        with pytest.raises(RunMissingError), database.read() as session:
            load(session, slug)
    with database.write() as session:
        assert library.restore_runs(session, [slug], START) == []
        assert library.restore_runs(session, [slug], START - timedelta(seconds=1)) == [slug]
    assert found(database, text="harbour") == [slug]


def test_only_what_was_deleted_long_enough_ago_is_purged(database):
    slugs = [make(database, "Harbour"), make(database, "Harbour")]
    with database.write() as session:
        library.delete_runs(session, slugs[:1], START)
        library.delete_runs(session, slugs[1:], START + timedelta(minutes=1))
        assert library.purge_deleted(session, START) == 1
        assert library.restore_runs(session, slugs, START - timedelta(days=1)) == slugs[1:]
    assert found(database, text="harbour") == slugs[1:]


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_a_list_reads_no_table_from_end_to_end(database):
    statements = []

    def keep(_, __, statement, parameters, *___) -> None:
        if statement.lstrip().startswith("SELECT"):
            statements.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", keep)
    make(database)
    for wanted in ({}, {"method": "snapkv"}, {"text": "title"}):
        found(database, **wanted)
    event.remove(database.engine, "before_cursor_execute", keep)
    assert len(statements) > 12
    with database.engine.connect() as connection:
        for statement, parameters in statements:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            for row in plan:
                is_scan = row.detail.startswith(("SCAN runs", "SCAN results"))
                assert not is_scan or "INDEX" in row.detail, (row.detail, statement)
                if "EXISTS" in statement and "results" in row.detail:
                    assert "COVERING INDEX" in row.detail, (row.detail, statement)


# --- bytes that are counted while rows are stored, beside all rows counted one by one ------


def rows_of(database: Database, *tables: type) -> int:
    """All rows' texts, JSON and blobs in bytes, and what each row is said to take besides."""
    total = 0
    for table in tables:
        columns = [
            type_coerce(column, LargeBinary if isinstance(column.type, LargeBinary) else String)
            for column in table.__table__.columns
            if isinstance(column.type, AnyText | JSON | LargeBinary)
        ]
        with database.read() as session:
            for row in session.execute(select(*columns)):
                values = (value for value in row if value is not None)
                sizes = (len(v.encode() if isinstance(v, str) else v) for v in values)
                total += ROW_BYTES + sum(sizes)
    return total


def test_what_is_counted_on_the_way_is_what_is_there(here):
    if here.server is not None:  # the driver hands JSON out parsed
        return
    slug = make(here, answer="a\x00", question="Ünï?")
    record(here, RunRequest(context="c" * 999, variants=("full", "snapkv")))
    here.write_with(library.annotate, slug, "Tïtle", "note \x00")
    studies = Recorder(here)
    study = studies.save(STUDY, SAMPLES[:2], "ann")
    studies.served_by(study, MODEL, {"torch": "1"})
    studies.save(replace(STUDY, tolerance=7.0), SAMPLES, "ann")
    for text in ("ä", "longer"):  # a failed one is written over
        studies.commit(study, results_of(SAMPLES[0], state="failed", text=text))
    studies.commit(study, results_of(SAMPLES[1]))
    here.write_with(library.annotate, study, "Another nämé", "note")
    total = here.read_with(usage_of, None).run_bytes
    assert total == rows_of(here, Run, SampleRow, ResultRow, Array)
    of_ann = here.read_with(usage_of, "ann").run_bytes
    nobody = next(each for each in here.read_with(usage_by_owner) if each.owner is None)
    assert (nobody.runs, nobody.run_bytes) == (2, total - of_ann)
