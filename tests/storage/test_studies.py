"""Studies in a database: one result per key whoever writes, and nothing of it lost or doubled."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, select, text

from ckv_core.errors import ConfigError, StorageError
from ckv_core.experiment.decide import random_order
from ckv_core.results.records import ModelInfo
from ckv_core.studies.export import Exported
from ckv_core.studies.records import Sample, SampleResult, Study
from storage import study_rows
from storage.studies import Studies
from storage.study_models import StudyResult, StudySample
from storage.usage import ROW_BYTES, stored_bytes, usage_by_owner
from tests.storage.conftest import at_once

STUDY = Study(
    name="needles",
    data={"file": "samples.jsonl"},
    variants=("snapkv", "adakv"),
    budgets=("10%", "20%"),
)
SAMPLE = Sample(id="", context="", question="?", answers=("a\x00", "b"), tags={"depth": 0.5})
SAMPLES = tuple(replace(SAMPLE, id=f"s{at}", context=f"text \x00 {at}") for at in range(4))
MODEL = replace(ModelInfo(**dict.fromkeys(ModelInfo.__slots__)), name="m", sha256="a")


@pytest.fixture
def studies(opened):
    """None yet, in a database that a module's tests share."""
    with opened.write() as session:
        session.execute(text("DELETE FROM studies"))
    return Studies(opened)


def results_of(sample: Sample, **changes: object) -> list[SampleResult]:
    said = {"state": "done", "score": 0.5, "text": "said \x00"} | changes
    return [
        SampleResult(sample=sample.id, variant=point.variant, budget=point.budget, **said)
        for point in STUDY.points()
    ]


def test_what_was_saved_is_read_back(studies):
    slug = studies.save(STUDY, SAMPLES)
    assert studies.load(slug).study == STUDY
    stored = studies.samples(slug)
    assert sorted(stored, key=lambda sample: sample.id) == [*SAMPLES]
    assert [SAMPLES.index(sample) for sample in stored] == random_order(range(4)) != [0, 1, 2, 3]
    assert studies.slug("needles") == slug
    for sample in SAMPLES[::-1]:
        studies.commit(slug, results_of(sample))
    assert studies.results(slug) == [r for sample in stored for r in results_of(sample)]
    found = studies.load(slug)
    assert (found.done, found.failed, found.total, found.state) == (20, 0, 20, "done")


def test_a_result_that_is_done_stays_and_a_failed_one_is_written_over(studies):
    slug = studies.save(STUDY, SAMPLES)
    studies.commit(slug, results_of(SAMPLES[0], state="failed", reason="No.", score=None))
    assert studies.load(slug).failed == 5
    assert not studies.standing(slug)
    studies.commit(slug, results_of(SAMPLES[0]))
    studies.commit(slug, results_of(SAMPLES[0], score=1.0))
    assert studies.results(slug) == results_of(SAMPLES[0])
    assert studies.standing(slug) == {result.key for result in results_of(SAMPLES[0])}


def test_many_writers_of_the_same_results_leave_each_once(studies, opened):
    slug = studies.save(STUDY, SAMPLES)

    def write() -> None:
        for sample in SAMPLES:
            studies.commit(slug, results_of(sample))

    assert at_once(*[write] * 4) == [None] * 4
    with opened.read() as session:
        assert session.scalar(select(func.count()).select_from(StudyResult)) == 20


def test_several_that_begin_the_same_study_make_one(studies):
    (slug,) = {*at_once(*[lambda: studies.save(STUDY, SAMPLES)] * 4)}
    assert len(studies.samples(slug)) == 4


def test_other_variants_and_more_samples_reuse_what_stands(studies):
    slug = studies.save(STUDY, SAMPLES[:2])
    for sample in SAMPLES[:2]:
        studies.commit(slug, results_of(sample))
    wider = replace(STUDY, variants=("snapkv", "pyramidkv"), tolerance=3.0)
    assert studies.save(wider, SAMPLES) == slug
    found = studies.load(slug)
    assert (found.done, found.total, found.state) == (6, 20, "unfinished")
    assert {result.variant for result in studies.results(slug)} == {"full", "snapkv"}
    studies.save(STUDY, SAMPLES)
    assert studies.load(slug).done == 10
    study = studies.load(slug).study
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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scenario": "context-only"}, "scenario"),
        ({"max_new_tokens": 5}, "max_new_tokens"),
        ({"metric": "token_f1"}, "metric"),
        ({"model": "other"}, "model"),
        ({"read_once": True}, "read_once"),
    ],
)
def test_what_decides_results_cannot_change(studies, changes, said):
    slug = studies.save(STUDY, SAMPLES)
    with pytest.raises(ConfigError, match=rf"with {said} .* another name"):
        studies.save(replace(STUDY, **changes), SAMPLES)
    assert studies.load(slug).study == STUDY


@pytest.mark.parametrize(
    "samples",
    [SAMPLES[1:], (replace(SAMPLES[0], answers=("c",)), *SAMPLES[1:])],
    ids=["left out", "changed"],
)
def test_samples_that_were_run_cannot_change(studies, samples):
    studies.save(STUDY, SAMPLES)
    with pytest.raises(ConfigError, match=r"'s0' .* changed or removed"):
        studies.save(STUDY, samples)


def test_other_weights_under_the_same_name_are_refused(studies):
    slug = studies.save(STUDY, SAMPLES)
    studies.served_by(slug, MODEL, {"torch": "1"})
    studies.served_by(slug, MODEL, {"torch": "1"})
    with pytest.raises(ConfigError, match="weights"):
        studies.served_by(slug, replace(MODEL, sha256="b"), {})


def test_owners_have_names_of_their_own(studies):
    mine, theirs = studies.save(STUDY, SAMPLES, "ann"), studies.save(STUDY, SAMPLES, "bob")
    assert mine != theirs
    assert [each.slug for each in studies.every("ann")] == [mine]
    assert {each.slug for each in studies.every()} == {mine, theirs}
    assert studies.slug("needles", "ann") == mine
    with pytest.raises(StorageError, match="no study 'needles'"):
        studies.slug("needles", "eve")
    with pytest.raises(ConfigError, match="2 users have a study 'needles'"):
        studies.slug("needles")
    studies.delete(theirs)
    assert studies.slug("needles") == mine


def test_lists_have_the_newest_first_and_a_bounded_one_those_that_are_to_run(studies, opened):
    first, second, third = (studies.save(replace(STUDY, name=each), SAMPLES) for each in "abc")
    studies.want(first)
    assert [each.slug for each in studies.every()] == [third, second, first]
    bounded = opened.ask(study_rows.list_studies, most=2)
    assert [each.slug for each in bounded] == [first, third]


def test_administrators_see_how_many_and_how_big(studies, opened):
    mine = studies.save(STUDY, SAMPLES, "ann")
    studies.save(replace(STUDY, name="second"), SAMPLES[:1], "ann")
    studies.save(STUDY, SAMPLES)
    with opened.read() as session:
        before = {each.owner: each for each in usage_by_owner(session)}
    assert (before["ann"].studies, before[None].studies) == (2, 1)
    assert before["ann"].study_bytes > before[None].study_bytes > 0
    for _ in range(2):
        studies.commit(mine, results_of(SAMPLES[0], text="w\u00f6rd"))
    with opened.read() as session:
        after = {each.owner: each for each in usage_by_owner(session)}
    grown = after["ann"].study_bytes - before["ann"].study_bytes
    assert grown == (5 + ROW_BYTES) * len(STUDY.points())
    assert after[None] == before[None]
    studies.delete(mine)
    assert opened.ask(stored_bytes, "ann")[1] < before["ann"].study_bytes


def test_what_the_app_is_to_run_is_remembered(studies):
    slug = studies.save(STUDY, SAMPLES)
    studies.want(slug)
    assert studies.wanted() == {slug: ""}
    assert studies.load(slug).state == "queued"
    studies.rest(slug, "No room.")
    assert studies.wanted() == {}
    assert studies.load(slug).reason == "No room."


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ('{"name": "x", "variants": ["snapkv:new_key=1"], "budgets": ["10%"], "data": {}}', "new_"),
        ('{"name": "x", "variants": ["snapkv"], "budgets": ["10%"], "data": {}, "no": 1}', "no"),
        ("[1]", "TypeError"),
    ],
)
def test_a_list_holds_a_study_that_cannot_be_read_and_says_why(studies, opened, spoilt, said):
    sound = studies.save(STUDY, SAMPLES)
    bad = studies.save(replace(STUDY, name="other"), SAMPLES, "ann")
    studies.want(bad)
    with opened.write() as session:
        change = text("UPDATE studies SET definition = :spoilt WHERE slug = :slug")
        session.execute(change, {"spoilt": spoilt, "slug": bad})
    row, whole = studies.every()
    assert (whole.slug, whole.problem, whole.total) == (sound, "", 20)
    assert (row.slug, row.owner, row.study.name, row.wanted) == (bad, "ann", "other", True)
    assert row.state == "unreadable"
    assert (row.samples, row.points, row.done, row.failed) == (0, 0, 0, 0)
    assert row.problem.startswith("This version cannot read the study: ")
    assert said in row.problem
    assert studies.owner(bad) == "ann"
    for act in (studies.load, studies.results):
        with pytest.raises(StorageError, match="This version cannot read the study: "):
            act(bad)
    assert studies.delete(bad)


def test_what_fails_each_time_stands_and_what_may_pass_does_not(studies):
    slug = studies.save(STUDY, SAMPLES)
    failed = {"state": "failed", "reason": "No.", "score": None}
    studies.commit(slug, results_of(SAMPLES[0], **failed))
    studies.commit(slug, results_of(SAMPLES[1], for_good=True, **failed))
    found = studies.load(slug)
    assert (found.failed, found.failed_for_good) == (10, 5)
    assert {sample for sample, _, _ in studies.standing(slug)} == {"s1"}


def test_a_deleted_study_takes_everything_with_it(studies, opened):
    slug = studies.save(STUDY, SAMPLES)
    studies.commit(slug, results_of(SAMPLES[0]))
    assert studies.delete(slug)
    assert not studies.delete(slug)
    with opened.read() as session:
        for table in (StudySample, StudyResult):
            assert session.scalar(select(func.count()).select_from(table)) == 0
    with pytest.raises(StorageError, match="no study"):
        studies.commit(slug, results_of(SAMPLES[0]))


def test_a_deleted_study_is_gone_at_once_and_its_rows_are_removed_later(studies, opened):
    slug = studies.save(STUDY, SAMPLES)
    studies.commit(slug, results_of(SAMPLES[0]))
    studies.want(slug)
    assert opened.tell(study_rows.delete_study, slug, datetime.now(UTC))  # and then it was killed
    studies.want(slug)
    assert (studies.every(), studies.wanted(), studies.claim(slug)) == ([], {}, False)
    assert opened.ask(stored_bytes, "") == opened.ask(stored_bytes, "nobody")
    for act in (studies.load, studies.owner, studies.results):
        with pytest.raises(StorageError, match="no study"):
            act(slug)
    again = studies.save(STUDY, SAMPLES[:1])
    studies.commit(again, results_of(SAMPLES[0]))
    studies.purge()
    with opened.read() as session:
        left = session.scalars(select(StudySample.study_id).distinct()).all()
        assert left == session.scalars(select(StudyResult.study_id).distinct()).all()
    assert len(left) == 1
    assert [each.slug for each in studies.every()] == [again]


def test_an_imported_study_is_whole_and_joins_what_stands(studies):
    results = tuple(result for sample in SAMPLES for result in results_of(sample))
    exported = Exported(
        study=STUDY, samples=SAMPLES, results=results, model=MODEL, environment={"python": "3"}
    )
    slug = studies.save(STUDY, SAMPLES)
    studies.commit(slug, results_of(SAMPLES[0], text="was first"))
    assert studies.add(exported) == slug
    assert studies.load(slug).state == "done"
    assert {result.text for result in studies.results(slug)} == {"was first", "said \x00"}
    other = replace(
        exported,
        model=replace(MODEL, sha256="cd"),
        samples=(*SAMPLES, replace(SAMPLES[0], id="new")),
    )
    with pytest.raises(ConfigError, match="another name"):
        studies.add(other)
    assert len(studies.samples(slug)) == len(SAMPLES)  # nothing of what was refused
