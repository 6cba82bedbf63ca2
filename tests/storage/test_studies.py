"""Studies in a database: one result per key whoever writes, and nothing of it lost or doubled."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf

import pytest
from sqlalchemy import func, select, text, update

from ckv_core.errors import ConfigError, StorageError
from ckv_core.experiment.decide import random_order
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.records.codec import record_json
from ckv_core.records.run_request import RunRequest
from storage import library, repository
from storage.models import ResultRow, Run, SampleRow
from storage.recorder import Recorder, fail_unfinished
from storage.records import RunFilter
from storage.repository import load_request, load_run
from storage.usage import usage_of
from tests.factories.runs import model_info
from tests.storage.conftest import at_once, make

STUDY = RunRequest(
    name="needles",
    data={"file": "samples.jsonl"},
    variants=("snapkv", "adakv"),
    budgets=("10%", "20%"),
)
SAMPLE = Sample(id="", context="", question="?", answers=("a\x00", "b"), tags={"depth": 0.5})
SAMPLES = tuple(replace(SAMPLE, id=f"s{at}", context=f"text \x00 {at}") for at in range(4))
MODEL = model_info(name="m", sha256="a")


class Studies(Recorder):
    """The recorder, and what is read back of runs of many samples."""

    def load(self, slug):
        return self.database.read_with(repository.load_study, slug)

    def samples(self, slug):
        return self.database.read_with(repository.load_samples, slug)

    def results(self, slug):
        return self.database.read_with(repository.load_results, slug)

    def standing(self, slug):
        return self.database.read_with(repository.done_keys, slug)

    def wanted(self):
        return self.database.read_with(repository.wanted_studies)

    def slug(self, name):
        return self.database.read_with(repository.slug_of_name, name)


@pytest.fixture
def studies(opened):
    """None yet, in a database that a module's tests share."""
    with opened.write() as session:
        session.execute(text("DELETE FROM runs"))
    return Studies(opened)


def delete(opened, slug: str) -> None:
    """Delete a run, and remove all of it."""
    now = datetime.now(UTC)
    opened.write_with(library.delete_runs, [slug], now)
    while opened.write_with(library.purge_deleted, now):
        pass


def listed(opened, **wanted):
    runs, _ = opened.read_with(library.list_runs, RunFilter(**wanted))
    return runs


def results_of(sample: Sample, **changes: object) -> list[SampleResult]:
    figures = {"final": 0.25, "kl": inf}
    said = {"state": "done", "score": 0.5, "text": "said \x00", "figures": figures} | changes
    return [
        SampleResult(sample=sample.id, variant=point.variant, budget=point.budget, **said)
        for point in STUDY.points()
    ]


def test_what_was_saved_is_read_back(studies):
    slug = studies.save(STUDY, SAMPLES)
    assert studies.load(slug).request == STUDY
    stored = studies.samples(slug)
    assert sorted(stored, key=lambda sample: sample.id) == [*SAMPLES]
    assert [SAMPLES.index(sample) for sample in stored] == random_order(range(4)) != [0, 1, 2, 3]
    assert studies.slug("needles") == slug
    for sample in SAMPLES[::-1]:
        studies.commit(slug, results_of(sample))
    assert studies.results(slug) == [r for sample in stored for r in results_of(sample)]
    assert studies.load(slug).state == "unfinished", "until its runner says that it rests"
    studies.end(slug)
    found = studies.load(slug)
    assert (found.counts.sentence, found.state) == ("20 of 20 results", "done")


def test_a_result_that_is_done_stays_and_a_failed_one_is_written_over(studies):
    slug = studies.save(STUDY, SAMPLES)
    failed = {"state": "failed", "reason": "No.", "score": None}
    studies.commit(slug, results_of(SAMPLES[0], **failed))
    studies.commit(slug, results_of(SAMPLES[1], for_good=True, **failed))
    counts = studies.load(slug).counts
    assert (counts.failed, counts.failed_for_good) == (10, 5)
    each_time = {result.key for result in results_of(SAMPLES[1])}
    assert studies.standing(slug) == each_time
    studies.commit(slug, results_of(SAMPLES[0]))
    studies.commit(slug, results_of(SAMPLES[0], score=1.0))
    done = [result for result in studies.results(slug) if result.state == "done"]
    assert done == results_of(SAMPLES[0])
    assert studies.standing(slug) == each_time | {result.key for result in done}


def test_many_that_make_and_fill_the_same_study_leave_each_result_once(studies, opened):
    (slug,) = {*at_once(*[lambda: studies.save(STUDY, SAMPLES)] * 4)}
    assert len(studies.samples(slug)) == 4

    def write() -> None:
        for sample in SAMPLES:
            studies.commit(slug, results_of(sample))

    assert at_once(*[write] * 4) == [None] * 4
    with opened.read() as session:
        assert session.scalar(select(func.count()).select_from(ResultRow)) == 20


def test_other_variants_and_more_samples_reuse_what_stands(studies):
    slug = studies.save(STUDY, SAMPLES[:2])
    for sample in SAMPLES[:2]:
        studies.commit(slug, results_of(sample))
    wider = replace(STUDY, variants=("snapkv", "pyramidkv"), tolerance=3.0)
    assert studies.save(wider, SAMPLES) == slug
    found = studies.load(slug)
    assert (found.counts.sentence, found.state) == ("6 of 20 results", "unfinished")
    assert {result.variant for result in studies.results(slug)} == {"full", "snapkv"}
    studies.save(STUDY, SAMPLES)
    assert studies.load(slug).counts.done == 10
    study = studies.load(slug).request
    assert (study.earlier_tolerances, study.earlier_variants) == ((3.0,), ("pyramidkv",))


def test_appended_samples_come_behind_and_a_study_that_is_read_once_takes_none(studies):
    slug = studies.save(STUDY, SAMPLES[:2])
    first = studies.samples(slug)
    studies.save(STUDY, SAMPLES)
    assert studies.samples(slug)[:2] == first
    once = replace(STUDY, name="once", read_once=True)
    studies.save(once, SAMPLES[:2])
    with pytest.raises(ConfigError, match="its 2 samples are fixed"):
        studies.save(once, SAMPLES)


FIXED = {"scenario": "context-only", "max_new_tokens": 5, "metric": "token_f1", "model": "other"}


@pytest.mark.parametrize(
    ("changes", "samples", "said"),
    [
        *(({name: value}, SAMPLES, f"with {name} .* another") for name, value in FIXED.items()),
        ({"read_once": True}, SAMPLES, "with read_once .* another name"),
        ({}, SAMPLES[1:], "'s0' .* changed or removed"),
        ({}, (replace(SAMPLES[0], answers=("c",)), *SAMPLES[1:]), "'s0' .* changed or removed"),
    ],
)
def test_what_decides_results_cannot_change(studies, changes, samples, said):
    slug = studies.save(STUDY, SAMPLES)
    with pytest.raises(ConfigError, match=said):
        studies.save(replace(STUDY, **changes), samples)
    assert studies.load(slug).request == STUDY


def test_other_weights_under_the_same_name_are_refused(studies):
    slug = studies.save(STUDY, SAMPLES)
    studies.served_by(slug, MODEL, {"torch": "1"})
    studies.served_by(slug, MODEL, {"torch": "1"})
    with pytest.raises(ConfigError, match="weights"):
        studies.served_by(slug, replace(MODEL, sha256="b"), {})


def test_owners_have_names_of_their_own(studies, opened):
    mine, theirs = studies.save(STUDY, SAMPLES, "ann"), studies.save(STUDY, SAMPLES, "bob")
    nobodys = studies.save(STUDY, SAMPLES)
    assert len({mine, theirs, nobodys}) == 3
    assert studies.save(STUDY, SAMPLES) == nobodys
    owners = opened.read_with(repository.slugs_of_name, "needles")
    assert owners == {"ann": mine, "bob": theirs, None: nobodys}
    assert {each.slug for each in listed(opened)} == {mine, theirs, nobodys}
    with pytest.raises(StorageError, match="no run 'other'"):
        studies.slug("other")
    with pytest.raises(ConfigError, match="3 users have a study 'needles'"):
        studies.slug("needles")
    for slug in (theirs, nobodys):
        delete(opened, slug)
    assert studies.slug("needles") == mine


def test_a_list_of_runs_has_those_of_many_samples_and_how_far_they_are(studies, opened):
    slug = studies.save(STUDY, SAMPLES, "ann")
    studies.commit(slug, results_of(SAMPLES[0]))
    studies.commit(slug, results_of(SAMPLES[1], state="failed"))
    (row,) = listed(opened)
    assert (row.slug, row.title, row.kind, row.state) == (slug, "needles", "samples", "unfinished")
    assert row.variant_specs == tuple(point.spec for point in STUDY.points())
    assert row.counts.sentence == "5 of 20 results, 5 failed"
    found = {"text": "needl", "method": "adakv", "kind": "samples", "state": "unfinished"}
    assert all(listed(opened, **{name: value}) for name, value in found.items())
    missed = {"text": "hay", "method": "ada", "kind": "sweep", "state": "done", "owner": "bob"}
    assert not any(listed(opened, **{name: value}) for name, value in missed.items())


def test_a_new_title_is_the_studys_name_and_stays_its_alone(studies, opened):
    slug, other = (studies.save(replace(STUDY, name=each), SAMPLES[:1]) for each in "ab")
    opened.write_with(library.annotate, slug, "new", "A note")
    assert studies.load(slug).request == replace(STUDY, name="new")
    assert [row.slug for row in listed(opened, text="note")] == [slug]
    for title, said in (("b", "is called 'b'"), ("x" * 81, "80"), ("a\nb", "control")):
        with pytest.raises(StorageError, match=said):
            opened.write_with(library.annotate, slug, title, "")
    opened.write_with(library.annotate, other, "b", "Its own name is no other's.")


def test_a_deletion_can_be_undone_unless_another_has_the_name_or_it_is_being_removed(
    studies, opened, monkeypatch
):
    slug, now = studies.save(STUDY, SAMPLES), datetime.now(UTC)
    studies.commit(slug, results_of(SAMPLES[0]))
    before = now - timedelta(minutes=1)
    opened.write_with(library.delete_runs, [slug], now)
    assert opened.write_with(library.restore_runs, [slug], before) == [slug]
    assert studies.load(slug).counts.done == 5
    opened.write_with(library.delete_runs, [slug], now)
    again = studies.save(STUDY, SAMPLES[:1])
    with pytest.raises(StorageError, match="is called 'needles'"):
        opened.write_with(library.restore_runs, [slug], before)
    assert [row.slug for row in listed(opened)] == [again]
    delete(opened, again)
    slug = studies.save(STUDY, SAMPLES)
    studies.commit(slug, results_of(SAMPLES[0]))
    opened.write_with(library.delete_runs, [slug], now)
    monkeypatch.setattr(library, "_RESULTS_AT_ONCE", 3)
    assert opened.write_with(library.purge_deleted, now) == 1
    assert opened.write_with(library.restore_runs, [slug], before) == []


def test_a_run_of_one_sample_is_none_of_many(studies, opened):
    slug = make(opened)
    assert studies.end(slug)
    studies.want(slug)
    assert (studies.wanted(), studies.start(slug)) == ({}, False)
    for act in (studies.load, studies.samples, studies.results, studies.standing):
        with pytest.raises(StorageError, match="no run"):
            act(slug)
    many = studies.save(STUDY, SAMPLES)
    for act in (load_run, load_request):
        with pytest.raises(StorageError, match=f"{many} has many samples"):
            opened.read_with(act, many)


def test_a_start_fails_the_runs_that_were_left_and_not_those_of_many_samples(studies, opened):
    slug = studies.save(STUDY, SAMPLES)
    studies.want(slug)
    studies.start(slug)
    with opened.write() as session:
        session.execute(update(Run).values(server=None))
    make(opened)
    assert opened.write_with(fail_unfinished, "Gone.", datetime.now(UTC)) == 1
    assert studies.load(slug).state == "running"


def test_what_the_app_is_to_run_is_remembered_and_not_deleted(studies, opened):
    slug = studies.save(STUDY, SAMPLES)

    def is_kept(state: str) -> None:
        assert (studies.wanted(), studies.load(slug).state) == ({slug: None}, state)
        with pytest.raises(StorageError, match="not over; cancel it first"):
            opened.write_with(library.delete_runs, [slug], datetime.now(UTC))

    studies.want(slug)
    is_kept("queued")
    assert studies.start(slug)
    is_kept("running")
    studies.release(slug)
    is_kept("queued")
    studies.end(slug, "cancelled", "No room.")
    studies.release(slug)
    assert studies.wanted() == {}
    assert (studies.load(slug).state, studies.load(slug).reason) == ("unfinished", "No room.")
    opened.write_with(library.delete_runs, [slug], datetime.now(UTC))


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ('{"name": "x", "variants": ["snapkv:new_key=1"], "budgets": ["10%"], "data": {}}', "new_"),
        ("[1]", "TypeError"),
    ],
)
def test_one_that_cannot_be_read_is_listed_says_why_and_is_deleted(studies, opened, spoilt, said):
    sound = studies.save(STUDY, SAMPLES)
    studies.commit(sound, results_of(SAMPLES[0], text=""))
    bad = studies.save(replace(STUDY, name="other"), SAMPLES, "ann")
    studies.want(bad)
    with opened.write() as session:
        change = text("UPDATE runs SET request = :spoilt WHERE slug = :slug")
        session.execute(change, {"spoilt": spoilt, "slug": bad})
    row, whole = listed(opened)
    assert opened.read_with(library.choices)["methods"] == ["adakv", "full", "snapkv"]
    assert (whole.slug, whole.counts.total) == (sound, 20)
    assert (row.slug, row.title, row.state, row.counts) == (bad, "other", "queued", None)
    for act in (studies.load, studies.results):
        with pytest.raises(StorageError, match=f"{bad} is spoilt and cannot be read .*{said}"):
            act(bad)
    assert studies.end(bad, "cancelled", "Stopped.")
    delete(opened, bad)


def test_a_deleted_study_is_gone_at_once_and_its_rows_are_removed_later(studies, opened):
    slug = studies.save(STUDY, SAMPLES)
    studies.commit(slug, results_of(SAMPLES[0]))
    now = datetime.now(UTC)
    opened.write_with(library.delete_runs, [slug], now)  # and then it was killed
    studies.want(slug)
    assert (listed(opened), studies.wanted(), studies.start(slug)) == ([], {}, False)
    assert opened.read_with(usage_of, None).run_bytes == 0
    for act in (studies.load, studies.results):
        with pytest.raises(StorageError, match="no run"):
            act(slug)
    with pytest.raises(StorageError, match="no run"):
        studies.commit(slug, results_of(SAMPLES[0]))
    again = studies.save(STUDY, SAMPLES[:1])
    studies.commit(again, results_of(SAMPLES[0]))
    while opened.write_with(library.purge_deleted, now):
        pass
    with opened.read() as session:
        left = session.scalars(select(SampleRow.run_id).distinct()).all()
        assert left == session.scalars(select(ResultRow.run_id).distinct()).all()
    assert len(left) == 1
    assert [each.slug for each in listed(opened)] == [again]


def test_an_imported_study_is_whole_and_joins_what_stands(studies):
    results = tuple(result for sample in SAMPLES for result in results_of(sample))
    facts = {"model_info": record_json(MODEL), "environment": {"python": "3"}}
    exported = Reading(STUDY, SAMPLES, results, facts=facts)
    slug = studies.save(STUDY, SAMPLES)
    studies.commit(slug, results_of(SAMPLES[0], text="was first"))
    assert studies.add(exported) == slug
    assert studies.load(slug).state == "done"
    assert {result.text for result in studies.results(slug)} == {"was first", "said \x00"}
    other = replace(
        exported,
        facts={"model_info": record_json(replace(MODEL, sha256="cd"))},
        samples=(*SAMPLES, replace(SAMPLES[0], id="new")),
    )
    with pytest.raises(ConfigError, match="another name"):
        studies.add(other)
    assert len(studies.samples(slug)) == len(SAMPLES)  # nothing of what was refused


def steps_of(database, query, slug: str) -> int:
    """How many hundreds of steps SQLite's machine takes for a query."""
    steps = []
    with database.read() as session:
        connection = session.connection().connection.driver_connection
        connection.set_progress_handler(lambda: steps.append(1), 100)
        query(session, slug)
        connection.set_progress_handler(None, 0)
    return len(steps)


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("query", ["load_results", "load_samples", "load_study", "done_keys"])
def test_four_times_the_samples_are_read_in_about_four_times_the_steps(database, query):
    """A join that compares all results with all samples takes sixteen times as many."""
    steps = []
    for count in (50, 200):
        many = [replace(SAMPLE, id=f"s{at}", context=f"text {at}") for at in range(count)]
        slug = Recorder(database).save(replace(STUDY, name=f"of {count}"), many)
        Recorder(database).commit(slug, [each for sample in many for each in results_of(sample)])
        steps.append(steps_of(database, getattr(repository, query), slug))
    assert 0 < steps[1] < 6 * max(steps[0], 10), steps
