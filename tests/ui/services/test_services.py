"""Services over a real database and a real worker process that plays scripts, and its failures."""

import asyncio
import copy
import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from ckv_core.errors import CkvError, StorageError
from ckv_core.records.events import Progress
from ckv_core.records.run_request import RunRequest
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import ModelStatus, Reply
from storage import repository
from tests.factories.app import (
    ENDLESS,
    collect,
    end_of,
    finished,
    generating,
    make_client,
    running,
    script,
    wait_until,
    worker_pid,
)
from tests.factories.events import assert_same_result, events_of
from tests.factories.runs import done_result
from tests.processes import PATIENCE_S, wait_for
from ui.accounts.access import Viewer, acting_as
from ui.limits import Limits
from ui.services.live_runs import LiveRun, RunSnapshot
from ui.services.services import CLOSED


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
    assert services.live_states() == {}


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


def test_many_watch_one_run_and_one_that_leaves_changes_nothing(services):
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


def test_a_run_over_the_apps_time_fails_and_keeps_what_it_had(make_services):
    def hasty(take: Callable[[Reply], None], run_limit_s: float, **others: Any) -> WorkerClient:
        return make_client(take, run_limit_s=run_limit_s / 60, **others)

    services = make_services(make_client=hasty, limits=Limits(run_minutes=1))
    end = end_of(services, services.start_run(script(ENDLESS)))
    assert end.state == "failed"
    assert "this app's limit; what it had is kept" in end.reason
    assert end.result.variants[0].text.startswith("w0 ")


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
    wait_for(services.count_by_state, {"done": 1, "failed": 1}.__eq__)
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
