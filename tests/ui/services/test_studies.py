"""Studies in the app: whoever is killed, stopped or restarted, every sample counts once."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from ckv_core.errors import CkvError, ConfigError, StorageError
from ckv_core.experiment.study import Sample
from ckv_core.experiment.study_runner import failed_sample
from ckv_core.records.run_request import RunRequest
from storage import library, repository
from tests.factories.app import ENDLESS, end_of, script
from tests.processes import PATIENCE_S, wait_for
from ui.accounts.access import DISABLED, Access, Viewer, acting_as
from ui.limits import LimitError, Limits
from ui.results.views import progress_sentence
from ui.services import runs, study_jobs
from ui.services.live_runs import RunSnapshot, study_snapshot
from ui.services.services import Services
from ui.users import User

STUDY = RunRequest(
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
    services.cancel_run(slug)
    wait_until(services, slug, over)


def wait_until(services: Services, slug: str, wanted: Callable[[RunSnapshot], bool]) -> RunSnapshot:
    return wait_for(lambda: services.view(slug), wanted)


def over(view: RunSnapshot) -> bool:
    return view.state in ("done", "unfinished")


def test_a_study_runs_to_its_end(services):
    slug = services.studies.start(STUDY, samples(4))
    view = wait_until(services, slug, over)
    assert (view.state, view.counts.done, view.reason) == ("done", 8, "")
    assert {result.score for result in services.studies.results(slug)} == {1.0}
    assert view.result.model.name == "tiny"
    (row,) = services.library.list_runs()[0]
    assert (row.slug, row.state, row.counts.sentence) == (slug, "done", "8 of 8 results")


def test_a_sample_that_kills_the_worker_fails_alone(services):
    slug = services.studies.start(STUDY, samples(4, s1="kill", s2="refuse"))
    view = wait_until(services, slug, over)
    assert (view.state, view.counts.done, view.counts.failed) == ("done", 4, 4)
    reasons = {r.sample: r.reason for r in services.studies.results(slug) if r.reason}
    assert reasons.keys() == {"s1", "s2"}
    assert "SIGKILL" in reasons["s1"]
    assert "protected" in reasons["s2"]


def test_a_worker_killed_in_the_middle_costs_nothing(services):
    slug = services.studies.start(STUDY, samples(16))
    wait_until(services, slug, lambda view: view.counts.done > 2)
    services._client._worker.kill()
    view = wait_until(services, slug, over)
    assert (view.counts.done, view.counts.failed) == (32, 0)


def test_an_app_that_is_closed_goes_on_when_it_opens(make_services):
    first = make_services()
    slug = first.studies.start(STUDY, samples(16))
    wait_until(first, slug, lambda view: view.counts.done > 2)
    first.close()
    second = make_services()
    assert 2 < second.view(slug).counts.done < 32
    view = wait_until(second, slug, over)
    assert (view.state, view.counts.done, view.counts.failed) == ("done", 32, 0)


def test_stopped_resumed_and_deleted(services):
    slug = services.studies.start(STUDY, samples(16))
    running = wait_until(
        services, slug, lambda view: view.state == "running" and view.counts.done > 2
    )
    services.cancel_run(slug)
    ended = replace(running, state="unfinished")
    on_a_cluster = study_snapshot(ended, running.pace, runs=True)
    assert on_a_cluster.state == "stopping"
    assert "What a cluster is working on" in progress_sentence(on_a_cluster, ended.counts)
    view = wait_until(services, slug, over)
    assert view.state == "unfinished"
    assert view.reason == "Cancelled on request."
    services.studies.resume(slug)
    assert wait_until(services, slug, lambda view: view.state == "done").counts.done == 32
    services.library.delete([slug])
    with pytest.raises(StorageError, match="no run"):
        services.view(slug)
    assert services.library.restore([slug]) == 1
    assert services.view(slug).counts.done == 32


def test_what_a_killed_deletion_left_is_removed_at_the_next_start(make_services, file_database):
    slug = make_services().studies._store.save(STUDY, samples(4))
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    file_database.write_with(library.delete_runs, [slug], long_ago)
    make_services()
    with file_database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM samples")) == 0


def test_samples_that_all_fail_for_one_reason_end_the_study(services):
    slug = services.studies.start(STUDY, samples(9, **{f"s{at}": "refuse" for at in range(9)}))
    view = wait_until(services, slug, over)
    assert view.state == "unfinished"
    assert view.counts.failed == 6
    assert "3 samples in a row failed" in view.reason


def test_runs_come_between_a_studys_samples(services):
    slug = services.studies.start(STUDY, samples(16))
    wait_until(services, slug, lambda view: view.counts.done > 1)
    run = services.start_run(RunRequest(context="one two", question="steps", model="tiny"))
    assert end_of(services, run).state == "done"
    assert not over(services.view(slug))
    cancel(services, slug)


def test_tasks_are_counted_by_the_model(services):
    study = replace(STUDY, data={"task": "vt", "length": 300, "samples": 2, "seed": 0})
    made = services.studies.samples_of(study)
    assert [len(sample.context.split()) <= 300 for sample in made] == [True, True]
    cost = services.studies.cost(study)
    assert (cost.samples, cost.points) == (2, 4)
    counted = []
    with pytest.MonkeyPatch.context() as patch:
        count = services._client.counter.count
        patch.setattr(
            services._client.counter, "count", lambda *of: counted.append(of) or count(*of)
        )
        many = services.studies.cost(replace(study, data=study.data | {"samples": 5000}))
    assert (many.samples, many.points) == (5000, 10_000)
    assert many.tokens == pytest.approx(5000 * 300, rel=0.1)
    assert len(counted) < 60, "an estimate makes a few samples, not all"
    too_many = replace(study, data=study.data | {"length": 60_000, "samples": 5000})
    for ask in (services.studies.cost, services.studies.samples_of):
        with pytest.raises(LimitError, match="300,000,000 tokens; this app makes 20,000,000"):
            ask(too_many)
    assert cost.seconds > 0
    with pytest.raises(ConfigError, match="Give the file with the samples"):
        services.studies.samples_of(STUDY)


def test_the_texts_of_stored_runs_become_samples(limited):
    services = limited()
    asked = RunRequest(context="one two", question="steps", answer="two", model="tiny")
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
    services = make_services(access=access, limits=Limits(runs=2, queue=3, queue_per_user=1))
    services._runs._run_samples = lambda *_: time.sleep(PATIENCE_S)
    with acting_as(Viewer(user="ann")):
        first = services.studies.start(STUDY, samples(2))
        with pytest.raises(CkvError, match="1 unfinished runs"):
            services.studies.start(replace(STUDY, name="second"), samples(2))
        services.studies._store.save(replace(STUDY, name="second"), samples(2), "ann")
        with pytest.raises(CkvError, match="2 runs are saved"):
            services.studies.start(replace(STUDY, name="third"), samples(2))
        services.studies.resume(first)
    with acting_as(Viewer(user="bob")):
        services.studies.start(STUDY, samples(2))


def test_users_take_turns_sample_by_sample(limited, monkeypatch):
    services, owners = limited("ann", "bob"), []
    submit = services._client.submit

    def noted(job, *given):
        owners.append(job.owner)
        return submit(job, *given)

    monkeypatch.setattr(services._client, "submit", noted)
    with acting_as(Viewer(user="ann")):
        long = services.studies.start(STUDY, samples(40))
        wait_until(services, long, lambda view: view.counts.done > 2)
    with acting_as(Viewer(user="bob")):
        short = services.studies.start(STUDY, samples(3))
        assert wait_until(services, short, over).counts.done == 6
    with acting_as(Viewer(user="ann")):
        assert services.view(long).state == "running"
        cancel(services, long)
    assert {*owners} == {"ann", "bob"}  # whose jobs the worker's queue takes in turn


def test_on_a_cluster_a_study_gives_way_to_anothers_after_some_samples(limited, monkeypatch):
    services = limited("ann", "bob")
    order: list[str] = []

    class OneAtATime:
        workers = 1

        def results(self, study, todo, _):
            for sample, points in todo:
                wait_for(lambda: order or turns.others_wait, bool)
                order.append(study.name)
                yield failed_sample(sample, points, CkvError(f"{sample.id} cannot run."))

    turns = study_jobs.ClusterTurns(OneAtATime())
    monkeypatch.setattr(services._runs, "_cluster", turns)
    monkeypatch.setattr(study_jobs, "CLUSTER_TURN", 1)
    slugs = {}
    for user, count in (("ann", 4), ("bob", 2)):
        with acting_as(Viewer(user=user)):
            study = replace(STUDY, name=user)
            slugs[user] = services.studies.start(study, samples(count))
    for user, slug in slugs.items():
        with acting_as(Viewer(user=user)):
            assert wait_until(services, slug, over).counts.failed == {"ann": 8, "bob": 4}[user]
    first, other = order[:2]
    assert {first, other} == {"ann", "bob"}
    assert order[:4] == [first, other, first, other]
    assert len(order) == 6


def test_disabling_stops_a_users_studies_and_administrators_see_and_stop_all(limited):
    services = limited("ann", "bob", "root")
    slugs = {}
    for user in ("ann", "bob"):
        with acting_as(Viewer(user=user)):
            slugs[user] = services.studies.start(STUDY, samples(40))
    with acting_as(Viewer(user="ann")):
        own = services.start_run(script(ENDLESS))
    admin = services.administration
    with acting_as(Viewer(user="bob")), pytest.raises(CkvError, match="Only an administrator"):
        admin.cancel(slugs["ann"])
    with acting_as(Viewer(user="root", is_admin=True)):
        queued = {(each.slug, each.owner, each.kind) for each in admin.queue()}
        studies = {(slug, user, "samples") for user, slug in slugs.items()}
        assert queued == studies | {(own, "ann", "compare")}
        admin.set_disabled("ann", disabled=True)
        admin.cancel(slugs["bob"])
    with acting_as(Viewer(user="ann")):
        assert wait_until(services, own, lambda view: view.is_final).state == "cancelled"
    for user, reason in (("ann", DISABLED), ("bob", "by an administrator")):
        with acting_as(Viewer(user=user)):
            view = wait_until(services, slugs[user], over)
            assert view.state == "unfinished"
            assert reason in view.reason
    # Nor does it run where another server, or a restart, finds that it is to be run.
    services._runs.want(slugs["ann"])
    with acting_as(Viewer(user="ann")):
        view = wait_until(services, slugs["ann"], lambda view: view.is_final)
        assert view.reason == DISABLED
    with acting_as(Viewer(user="root", is_admin=True)):
        admin.set_disabled("ann", disabled=False)


def test_counting_that_is_slow_is_waited_for(services, monkeypatch):
    monkeypatch.setattr(study_jobs, "COUNT_S", 0.0)
    monkeypatch.setattr(study_jobs, "LOOK_S", 0.02)
    slug = services.studies.start(STUDY, samples(2))
    view = wait_until(services, slug, over)
    assert (view.counts.done, view.counts.failed) == (4, 0)


def test_a_busy_database_is_waited_for(services, monkeypatch):
    monkeypatch.setattr(runs, "WAITS_S", (0.0, 0.0))
    busy, commit = [StorageError("It is held.")] * 2, services.studies._store.commit

    def held(slug, results):
        if busy:
            raise busy.pop()
        commit(slug, results)

    monkeypatch.setattr(services.studies._store, "commit", held)
    slug = services.studies.start(STUDY, samples(2))
    view = wait_until(services, slug, over)
    assert (view.counts.done, view.counts.failed, view.reason) == (4, 0, "")


def test_a_study_that_cannot_be_read_ends_and_can_be_deleted(services, monkeypatch):
    monkeypatch.setattr(services._runs, "_begin_turns", lambda: None)
    slug = services.studies.start(STUDY, samples(1))
    with services._database.write() as session:
        change = text("UPDATE runs SET request = :spoilt WHERE slug = :slug")
        session.execute(change, {"spoilt": "{}", "slug": slug})
    with pytest.raises(StorageError, match="spoilt and cannot be read"):
        services.view(slug)
    monkeypatch.undo()
    services._runs.want(slug)
    wait_for(lambda: slug not in services._database.read_with(repository.wanted_studies), bool)
    assert [run.slug for run in services.library.list_runs()[0]] == [slug]
    services.library.delete([slug])
    assert services.library.list_runs() == ([], 0)
