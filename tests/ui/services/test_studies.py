"""Studies in the app: whoever is killed, stopped or restarted, every sample counts once."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from ckv_core.errors import CkvError, ConfigError, StorageError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.studies.records import Sample, Study
from tests.factories.app import TIMEOUT_S, end_of, wait_for
from ui.accounts.access import Access, Viewer, acting_as
from ui.limits import Limits
from ui.services.services import Services
from ui.services.studies import StudyView
from ui.studies.progress import progress_sentence
from ui.users import User

STUDY = Study(
    name="made up",
    data={"file": "samples.jsonl"},
    model="tiny",
    variants=("streaming_llm",),
    budgets=("50%",),
)


def samples(count: int, **questions: str) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            id=f"s{at}",
            context="one two three four five six seven eight nine ten",
            question=questions.get(f"s{at}", "When?"),
            answers=("nine",),
        )
        for at in range(count)
    )


def cancel(services: Services, slug: str) -> None:
    """Stop it, and wait until nobody works at it."""
    services.studies.cancel(slug)
    wait_until(services, slug, over)


def wait_until(services: Services, slug: str, wanted: Callable[[StudyView], bool]) -> StudyView:
    return wait_for(lambda: services.studies.view(slug), wanted)


def over(view: StudyView) -> bool:
    return view.state in ("done", "unfinished")


def test_a_study_runs_to_its_end(services):
    slug = services.studies.start(STUDY, samples(4))
    view = wait_until(services, slug, over)
    assert (view.state, view.stored.done, view.stored.reason) == ("done", 8, "")
    assert {result.score for result in services.studies.results(slug)} == {1.0}
    assert view.stored.model["name"] == "tiny"
    assert [each.stored.slug for each in services.studies.every()] == [slug]


def test_a_sample_that_kills_the_worker_fails_alone(services):
    slug = services.studies.start(STUDY, samples(4, s1="kill", s2="refuse"))
    view = wait_until(services, slug, over)
    assert (view.state, view.stored.done, view.stored.failed) == ("done", 4, 4)
    reasons = {r.sample: r.reason for r in services.studies.results(slug) if r.reason}
    assert reasons.keys() == {"s1", "s2"}
    assert "SIGKILL" in reasons["s1"]
    assert "protected" in reasons["s2"]


def test_a_worker_killed_in_the_middle_costs_nothing(services):
    slug = services.studies.start(STUDY, samples(16))
    wait_until(services, slug, lambda view: view.stored.done > 2)
    services._client._lanes[0].worker.kill()
    view = wait_until(services, slug, over)
    assert (view.stored.done, view.stored.failed) == (32, 0)


def test_an_app_that_is_closed_goes_on_when_it_opens(make_services):
    first = make_services()
    slug = first.studies.start(STUDY, samples(16))
    wait_until(first, slug, lambda view: view.stored.done > 2)
    first.close()
    second = make_services()
    assert 2 < second.studies.view(slug).stored.done < 32
    view = wait_until(second, slug, over)
    assert (view.state, view.stored.done, view.stored.failed) == ("done", 32, 0)


def test_stopped_resumed_and_deleted(services):
    slug = services.studies.start(STUDY, samples(16))
    running = wait_until(services, slug, lambda view: view.running and view.stored.done > 2)
    services.studies.cancel(slug)
    on_a_cluster = replace(running, stored=replace(running.stored, wanted=False))
    assert on_a_cluster.state == "stopping"
    assert progress_sentence(on_a_cluster).startswith("Stopping: ")
    assert "What a cluster works at ends first." in progress_sentence(on_a_cluster)
    view = wait_until(services, slug, over)
    assert view.state == "unfinished"
    assert view.stored.reason == "Stopped on request."
    services.studies.resume(slug)
    assert wait_until(services, slug, lambda view: view.state == "done").stored.done == 32
    services.studies.delete(slug)
    with pytest.raises(StorageError, match="no study"):
        services.studies.view(slug)


def test_samples_that_all_fail_for_one_reason_end_the_study(services):
    slug = services.studies.start(STUDY, samples(9, **{f"s{at}": "refuse" for at in range(9)}))
    view = wait_until(services, slug, over)
    assert view.state == "unfinished"
    assert view.stored.failed == 6
    assert "3 samples in a row failed" in view.stored.reason


def test_runs_come_between_a_studys_samples(services):
    slug = services.studies.start(STUDY, samples(16))
    wait_until(services, slug, lambda view: view.stored.done > 1)
    run = services.start_run(CompareRequest(context="one two", question="steps", model="tiny"))
    assert end_of(services, run).state == "done"
    assert not over(services.studies.view(slug))
    cancel(services, slug)


def test_tasks_are_counted_by_the_model(services):
    study = replace(STUDY, data={"task": "vt", "length": 300, "samples": 2, "seed": 0})
    made = services.studies.samples_of(study)
    assert [len(sample.context.split()) <= 300 for sample in made] == [True, True]
    cost = services.studies.cost(study, made)
    assert (cost.samples, cost.points) == (2, 4)
    assert cost.seconds > 0
    with pytest.raises(ConfigError, match="data file"):
        services.studies.samples_of(STUDY)


def test_the_texts_of_stored_runs_become_samples(limited):
    services = limited()
    asked = CompareRequest(context="one two", question="steps", answer="two", model="tiny")
    slugs = [
        services.start_run(each)
        for each in (asked, replace(asked, question="steps?"), replace(asked, context="other"))
    ]
    found = services.studies.samples_of(replace(STUDY, data={"runs": slugs}))
    assert [(s.id, s.context, s.question, s.answers) for s in found] == [
        (slugs[0], "one two", "steps", ("two",)),
        (slugs[1], "one two", "steps?", ("two",)),
        (slugs[2], "other", "steps", ("two",)),
    ]
    assert [sample.source for sample in found] == [slugs[0], slugs[0], slugs[2]]
    twin = services.start_run(asked)
    with pytest.raises(ConfigError, match="ask the same"):
        services.studies.samples_of_runs([slugs[0], twin])
    plain = services.start_run(replace(asked, answer=""))
    with pytest.raises(ConfigError, match="no reference answer"):
        services.studies.samples_of_runs([plain])
    with pytest.raises(StorageError, match="no run"):
        services.studies.samples_of_runs(["nothere00000"])


def test_studies_are_bounded_as_runs_are(make_services, file_database):
    access = Access(file_database, {"ann": User(""), "bob": User("")})
    services = make_services(access=access, limits=Limits(studies=2, queue=3, queue_per_user=1))
    services.studies._run_samples = lambda *_: time.sleep(TIMEOUT_S)
    with acting_as(Viewer(user="ann")):
        first = services.studies.start(STUDY, samples(2))
        with pytest.raises(CkvError, match="1 unfinished studies"):
            services.studies.start(replace(STUDY, name="second"), samples(2))
        services.studies._store.save(replace(STUDY, name="second"), samples(2), "ann")
        with pytest.raises(CkvError, match="2 studies are saved"):
            services.studies.start(replace(STUDY, name="third"), samples(2))
        services.studies.resume(first)
    with acting_as(Viewer(user="bob")):
        services.studies.start(STUDY, samples(2))


def test_a_study_is_its_owners_alone(limited):
    services = limited("ann", "bob")
    with acting_as(Viewer(user="ann")):
        slug = services.studies.start(STUDY, samples(2))
        wait_until(services, slug, over)
    with acting_as(Viewer(user="bob")):
        for act in ("view", "results", "samples", "cancel", "resume", "delete"):
            with pytest.raises(StorageError, match="no study"):
                getattr(services.studies, act)(slug)
        assert services.studies.every() == []
    with acting_as(Viewer(user="ann", scope="read")), pytest.raises(CkvError, match="read"):
        services.studies.cancel(slug)
    with pytest.raises(CkvError, match="Log in"):
        services.studies.every()
