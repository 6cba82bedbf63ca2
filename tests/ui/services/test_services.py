"""Services over a real database and a real worker process that plays scripts, and its failures."""

import asyncio
import copy
import dataclasses
import itertools
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest
from sqlalchemy import text

from ckv_core.errors import CkvError, StorageError
from ckv_core.records.events import Progress, RunEvent
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import PreviewRequest
from ckv_core.worker.messages import ModelStatus
from storage import repository
from storage.library import list_runs
from storage.records import RunFilter
from storage.repository import RunMissingError
from tests.factories.app import (
    ENDLESS,
    collect,
    end_of,
    finished,
    generating,
    running,
    script,
    states_of,
    store_run,
    wait_until,
    worker_pid,
)
from tests.factories.events import assert_same_result, events_of
from tests.factories.runs import done_result
from tests.processes import PATIENCE_S, wait_for
from tests.ui.served_app import by
from ui.accounts.access import Access, Viewer, acting_as
from ui.services import example
from ui.services.example import OWNER
from ui.services.live_runs import LiveRun, RunSnapshot
from ui.services.previews import NOT_LIVE, REPLACED
from ui.services.services import CLOSED, WATCHER_S, Services
from ui.users import User


def test_a_run_ends_done_and_is_read_from_storage_as_it_was_in_memory(services):
    slug = services.start_run(script("steps 5"))
    views = asyncio.run(collect(services.watch(slug, 0.01)))
    last, stored = views[-1], services.snapshot(slug)
    assert (last.state, stored.state) == ("done", "done")
    assert last.result.finished
    for view in (last, stored):
        assert view.result.variants[0].text == "w0 w1 w2 w3 w4 "
        assert set(view.stage_ms) == {"load", "prefill", "decode"}
        assert view.started_at is not None
        assert view.finished_at is not None
        assert view.progress is None
    assert stored.result.prompt == last.result.prompt
    assert stored.title == last.title
    assert services._runs.unfinished() == []


def test_a_watcher_sees_queued_running_and_growing_text(services):
    ahead, slug = services.start_run(script(ENDLESS)), services.start_run(script(ENDLESS))

    async def watched() -> list[RunSnapshot]:
        """Every view; the runs end once enough was seen, however slow the watcher is."""
        views: list[RunSnapshot] = []
        async for view in services.watch(slug, 0.01):
            views.append(view)
            if len(views) == 1:
                services.cancel_run(ahead)
            if len({each.result.variants[0].text for each in views if generating(each)}) == 6:
                services.cancel_run(slug)
        return views

    views = asyncio.run(asyncio.wait_for(watched(), PATIENCE_S))
    states = [view.state for view in views]
    assert states == sorted(states, key=["queued", "running", "cancelled"].index)
    assert {"queued", "running", "cancelled"} == set(states)
    assert len(set(map(id, views))) == len(views), "each is another one"
    texts = [view.result.variants[0].text for view in views if view.result.variants]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert len(set(texts)) > 5
    assert any(view.progress and view.progress.stage == "decode" for view in views)


def test_updates_come_at_most_once_per_interval(services):
    slug = services.start_run(script("steps 40"))
    wait_until(services, slug, generating)
    started = time.monotonic()
    views = asyncio.run(collect(services.watch(slug)))
    assert len(views) <= (time.monotonic() - started) / 0.08 + 2


def test_many_watch_one_run_each_less_often_and_one_that_leaves_changes_nothing(
    services, monkeypatch
):
    pauses, sleep, own = [], asyncio.sleep, threading.get_ident()

    def noted(delay: float) -> Awaitable[None]:
        if threading.get_ident() == own:  # served apps of other tests have loops too
            pauses.append(delay)
        return sleep(delay)

    monkeypatch.setattr(asyncio, "sleep", noted)

    async def watch_all() -> list[RunSnapshot]:
        slug = services.start_run(script("steps 20"))
        leaving = services.watch(slug, 0.01)
        await anext(leaving)
        await leaving.aclose()
        cut_off = asyncio.create_task(collect(services.watch(slug, 0.01)))
        others = [asyncio.create_task(collect(services.watch(slug, 0.01))) for _ in range(3)]
        await asyncio.sleep(0.05)
        cut_off.cancel()
        return [views[-1] for views in await asyncio.gather(*others)]

    lasts = asyncio.run(watch_all())
    assert [last.state for last in lasts] == ["done"] * 3
    assert max(pauses) == 4 * WATCHER_S


def test_a_queued_run_hears_when_one_ahead_of_it_leaves(services):
    async def watch_last(slugs: list[str]) -> int:
        views = services.watch(slugs[-1], 0.01)
        first = await anext(views)
        services.cancel_run(slugs[1])
        async with asyncio.timeout(PATIENCE_S):
            second = await anext(views)
        await views.aclose()
        assert (first.queue_ahead, second.state) == (2, "queued")
        return second.queue_ahead

    assert asyncio.run(watch_last([services.start_run(script(ENDLESS)) for _ in range(3)])) == 1


def test_users_take_turns_and_each_is_told_its_true_place(limited):
    services = limited("ann", "ben")
    with acting_as(Viewer(user="ann")):
        first, second, third = (services.start_run(script(ENDLESS)) for _ in range(3))
        wait_until(services, first, lambda view: view.state == "running")
        slugs = (first, second, third)
        assert [services.snapshot(slug).queue_ahead for slug in slugs] == [0, 1, 2]
    with acting_as(Viewer(user="ben")):
        fourth = services.start_run(script("steps 1"))
        assert services.snapshot(fourth).queue_ahead == 1
    with acting_as(Viewer(user="ann")):
        assert [services.snapshot(slug).queue_ahead for slug in (second, third)] == [2, 3]
        assert services._client.order() == (first, fourth, second, third)
        services.cancel_run(first)
    with acting_as(Viewer(user="ben")):
        assert end_of(services, fourth).state == "done"
    with acting_as(Viewer(user="ann")):
        assert services.snapshot(third).state == "queued"


def test_a_full_queue_is_one_sentence_and_takes_runs_again_later(services):
    slugs = [services.start_run(script(ENDLESS)) for _ in range(3)]
    with pytest.raises(CkvError, match=r"queue is full \(3 runs\)"):
        services.start_run(script("steps 1"))
    page, count = services.library.list_runs(limit=2, offset=2)
    assert (len(page), count) == (1, 3)
    for slug in slugs:
        services.cancel_run(slug)
        assert end_of(services, slug).state == "cancelled"
    finished(services, "steps 1")


def test_cancel_ends_a_queued_and_a_running_run_and_keeps_what_was_there(services):
    running, queued = services.start_run(script(ENDLESS)), services.start_run(script(ENDLESS))
    wait_until(services, running, generating)
    services.cancel_run(queued)
    assert end_of(services, queued).state == "cancelled"
    services.cancel_run(running)
    end = end_of(services, running)
    assert (end.state, end.reason) == ("cancelled", "Cancelled on request.")
    assert end.result.variants[0].text.startswith("w0 ")
    services.cancel_run(running)


def test_tokens_are_counted_during_a_run_and_bad_text_is_refused_here(services):
    slug = services.start_run(script(ENDLESS))
    wait_until(services, slug, generating)
    assert services.count_tokens(RunRequest(context="a b c d")).tokens == 4
    assert "lone surrogate" in services.count_tokens(RunRequest(context="\ud800")).error
    assert services.snapshot(slug).state == "running"


def test_the_status_of_a_model_tells_of_its_loading_and_hides_no_others(make_services):
    services = make_services()

    def status_of(model: str, wanted: Callable[[ModelStatus], bool]) -> ModelStatus:
        return wait_for(lambda: services.model_status(model), wanted)

    assert services.model_status("tiny") is None
    services.warm("slow")
    assert services.model_status("slow").loading
    services.cancel_load("slow")
    status = status_of("slow", lambda status: not status.loading)
    assert (status.message, status.failed) == ("Loading slow was cancelled.", False)
    for model in ("tiny", "other"):
        services.warm(model)
        status_of(model, lambda status: status.ready)
    assert services.model_status("tiny").message == "tiny is ready on cpu in float32."


# --- when the worker, the server or the disk fails --------------------------------------------


def test_a_killed_worker_fails_its_run_with_a_reason_and_the_next_run_works(services):
    first, second = (services.start_run(script(text)) for text in (ENDLESS, "steps 2"))
    wait_until(services, first, generating)
    pid = worker_pid(services)
    os.kill(pid, signal.SIGKILL)
    end = end_of(services, first)
    assert end.state == "failed"
    assert "SIGKILL" in end.reason
    assert end.result.variants[0].text.startswith("w0 ")
    assert end_of(services, second).state == "done"
    assert worker_pid(services) != pid


def test_close_cancels_what_is_unfinished_and_refuses_new_runs(make_services):
    services = make_services()
    running, queued = services.start_run(script("hang")), services.start_run(script(ENDLESS))
    wait_until(services, running, lambda view: bool(view.result.variants))
    services.close()
    for slug in (running, queued):
        view = services.snapshot(slug)
        assert (view.state, view.reason) == ("cancelled", CLOSED)
    with pytest.raises(CkvError, match="closing"):
        services.start_run(script("steps 1"))


def test_a_disk_that_fills_up_fails_the_run_and_the_app_lives_on(make_services, file_database):
    services = make_services()
    slug = services.start_run(script(ENDLESS))
    wait_until(services, slug, generating)
    with file_database.write() as session:
        # SQLite checks these triggers at every write, as it would a full disk.
        for table in ("runs", "results"):
            full = "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
            session.execute(text(f"CREATE TRIGGER full_{table} BEFORE UPDATE ON {table} {full}"))
    end = end_of(services, slug)
    assert end.state == "failed"
    assert "is full; free some space" in end.reason
    assert services.snapshot(slug).reason == end.reason
    with file_database.write() as session:
        for table in ("runs", "results"):
            session.execute(text(f"DROP TRIGGER full_{table}"))
    finished(services, "steps 2")
    # The end that could not be recorded then is recorded now.
    wait_for(lambda: states_of(services), {"done": 1, "failed": 1}.__eq__)
    with file_database.read() as session:
        stored = repository.load_run(session, slug)
    assert (stored.state, stored.reason) == ("failed", end.reason)
    services.library.delete([slug])
    with pytest.raises(StorageError, match="no run"):
        services.snapshot(slug)


# --- a run in memory and its snapshots


def test_a_snapshot_does_not_change_under_its_reader():
    run = LiveRun(running(state="queued", started_at=None, progress=None, stage_ms={}))
    stages = [Progress(stage, None, "") for stage in ("load", "prefill", "score")]
    views = []
    for event in (*stages, *events_of(done_result())):
        run.apply(event)
        view = run.view
        views.append((view, copy.deepcopy(view)))
    assert [set(view.stage_ms) for view, _ in views[:3]] == [set(), {"load"}, {"load", "prefill"}]
    for view, before in views:
        assert view.stage_ms == before.stage_ms
        assert_same_result(view.result, before.result)


# --- previews over a real worker process that plays scripts: whose they are, and when they end ---


def stored(services: Services, text: str = "steps 3", owner: str | None = None) -> str:
    request = replace(script(text), variants=("full", "snapkv+critical"), budgets=("50%",))
    return store_run(services, request, done_result(), owner)


def wanted(services: Services, slug: str, **values: object) -> RunRequest:
    return services.previews.request(slug, values)[1]


async def events(services: Services, request: RunRequest, viewer: str = "me") -> list[RunEvent]:
    work = PreviewRequest(run=request)
    return [event async for event in services.previews.events(work, viewer)]


def test_a_preview_gives_events_and_stores_nothing(services):
    slug = stored(services)
    request = wanted(services, slug, budget="25%", alpha="0.5")
    assert (request.budgets, request.alphas) == (("25%",), ("0.5",))
    found = asyncio.run(events(services, request))
    assert found[-2].texts == ("w0 w1 w2 ",)
    assert services.library.list_runs()[1] == 1
    assert services._runs.unfinished() == []


@pytest.mark.parametrize(
    "values",
    [
        {"budget": "none"},
        {"budget": ["25%"]},
        {"alpha": 2**70},
        {"alpha": "2"},
        {"budget": "5" * 100},
        {"context": "another"},
        "25%",
        None,
    ],
)
def test_other_values_are_refused_with_a_sentence(services, values):
    slug = stored(services)
    with pytest.raises(CkvError):
        services.previews.request(slug, values)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"variant": 9},
        {"variant": True},
        {"variant": 1, "evidence": "tokens:0-1"},
        {"variant": 1, "evidence": ["a text"]},
        {"variant": 0},
    ],
)
def test_why_takes_a_variant_that_evicts_and_places_of_the_prompt(services, given):
    own = {"variants": ("full", "snapkv"), "answer": "w1", "defaults": {"window": "2"}}
    request = replace(script("steps 3"), **own)
    slug = store_run(services, request, done_result())
    spec = services.snapshot(slug).result.variants[1].spec
    places = ["tokens:0-1"]
    wanted = services.previews.why(slug, {"variant": 1, "evidence": places})
    assert (wanted.variant, wanted.evidence) == (spec, tuple(places))
    with pytest.raises(CkvError):
        services.previews.why(slug, given)


def test_a_run_that_failed_or_of_several_budgets_has_no_preview(services):
    failed = store_run(services, script("steps 1"), done_result(), reason="Broken.")
    several = replace(script("steps 1"), variants=("snapkv",), budgets=("4", "5"))
    for slug in (failed, store_run(services, several, done_result())):
        with pytest.raises(CkvError, match=NOT_LIVE):
            services.previews.request(slug, {})


def test_a_newer_preview_of_a_viewer_ends_the_one_before_and_no_other_viewers(services):
    endless = wanted(services, stored(services, ENDLESS), budget="25%")
    short = wanted(services, stored(services), budget="25%")

    async def act() -> tuple[str, list[RunEvent], list[RunEvent]]:
        before = asyncio.create_task(events(services, endless))
        await asyncio.sleep(0.1)
        other = asyncio.create_task(events(services, short, "another"))
        newer = await events(services, short)
        with pytest.raises(CkvError) as ended:
            await asyncio.wait_for(before, PATIENCE_S)
        return str(ended.value), newer, await other

    ended, *ran = asyncio.run(act())
    assert ended == REPLACED
    assert all(ran)
    assert services.previews._jobs == {}


def test_a_reader_who_leaves_ends_the_preview(services):
    endless = wanted(services, stored(services, ENDLESS), budget="25%")

    async def act() -> None:
        async with aclosing(services.previews.events(PreviewRequest(run=endless), "me")) as found:
            async for _ in found:
                break

    asyncio.run(act())
    assert services.previews._jobs == {}
    previews = services._client._previews
    wait_for(lambda: not previews.order())


def test_a_preview_is_saved_as_a_run_made_from_the_one_shown(services):
    slug = stored(services)
    saved = services.previews.save(slug, {"budget": "25%"})
    run = end_of(services, saved)
    assert run.request == replace(services.snapshot(slug).request, budgets=("25%",))


# --- the app's own example run: made once, after all other runs, and read by everybody -----


@pytest.fixture
def teams(make_services, file_database, monkeypatch):
    """Makes services with logins, one after the other, on one database."""
    monkeypatch.setattr(example, "LOOK_S", 0.02)

    def make():
        return make_services(access=Access(file_database, {"ann": User(""), "bob": User("")}))

    return make


def ready(services, request) -> None:
    services._keep_status(ModelStatus(request.model, ready=True, message="ready"))


def made(services) -> str:
    wait_for(lambda: (view := services.example.view()) is not None and view.state == "done")
    return services.example.view().slug


def test_it_is_made_once_and_everybody_may_read_it_and_nobody_owns_it(teams):
    request, services = script("steps 2"), teams()
    services.example.begin(request)
    assert services.example.view() is None, "the model is not ready"
    ready(services, request)
    slug = made(services)
    with by("ann"):
        assert services.snapshot(slug).state == "done"
        assert services.library.list_runs() == ([], 0)
        assert not services.may_change(slug)
        with pytest.raises(RunMissingError):
            services.library.delete([slug])
    services.close()
    again = teams()
    again.example.begin(request)
    assert made(again) == slug
    other = teams()
    other.example.begin(dataclasses.replace(request, question="Another?"))
    ready(other, request)
    assert made(other) != slug
    with by("bob"), pytest.raises(RunMissingError):
        other.snapshot(slug)


def runs_now(services) -> bool:
    view = services.example.view()
    return view is not None and view.state == "running"


def test_it_gives_way_to_another_run_and_is_made_after_it(teams):
    request, services = script(ENDLESS), teams()
    ready(services, request)
    services.example.begin(request)
    wait_for(lambda: runs_now(services))
    with by("ann"):
        slug = services.start_run(script(ENDLESS))
        wait_until(services, slug, generating)
        assert not runs_now(services)
        services.cancel_run(slug)
    wait_for(lambda: runs_now(services))
    services.close()
    later = teams()
    later.example.begin(script("steps 1"))
    left = RunFilter(owner=OWNER)
    # What the first one broke off goes.
    wait_for(lambda: later._database.read_with(list_runs, left) == ([], 0))


def test_one_that_fails_is_given_up_and_nothing_of_it_is_shown(teams):
    request, services = script("refuse"), teams()
    ready(services, request)
    services.example.begin(request)
    wait_for(lambda: not services.example.is_expected)
    assert services.example.view() is None
