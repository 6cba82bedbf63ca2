"""Previews over a real worker process that plays scripts: whose they are, and when they end."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from ckv_core.errors import CkvError, StorageError
from ckv_core.records.events import RunEvent
from ckv_core.records.run_request import RunRequest
from storage.repository import load_lineage
from tests.factories.app import ENDLESS, end_of, script, store_run
from tests.factories.runs import done_result
from tests.processes import PATIENCE_S, wait_for
from ui.accounts.access import AccessError, Viewer, acting_as
from ui.services.previews import NOT_LIVE, REPLACED
from ui.services.services import Services


def stored(services: Services, text: str = "steps 3", owner: str | None = None) -> str:
    request = replace(script(text), variants=("full", "snapkv+critical"), budgets=("50%",))
    return store_run(services, request, done_result(), owner)


def wanted(services: Services, slug: str, **values: object) -> RunRequest:
    return services.previews.request(slug, values)[1]


async def events(services: Services, request: RunRequest, viewer: str = "me") -> list[RunEvent]:
    return [event async for event in services.previews.events(request, viewer, "answers")]


def test_a_preview_gives_events_and_stores_nothing(services):
    slug = stored(services)
    request = wanted(services, slug, budget="25%", alpha="0.5")
    assert (request.budgets, request.alphas) == (("25%",), ("0.5",))
    found = asyncio.run(events(services, request))
    assert found[-2].texts == ("w0 w1 w2 ",)
    assert services.library.list_runs()[1] == 1
    assert services.live_states() == {}


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
        async with aclosing(services.previews.events(endless, "me", "answers")) as found:
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
    lineage = services._database.read_with(load_lineage, saved)
    assert (lineage.parent, lineage.kind) == (slug, "fork")


def test_who_may_not_start_runs_gets_no_preview(limited):
    services = limited("ann", "bob")
    slug = stored(services, owner="ann")
    guest = Viewer(shared=frozenset({slug}))
    refused = {
        guest: AccessError,
        Viewer(user="ann", scope="read"): AccessError,
        Viewer(user="bob"): StorageError,
    }
    for viewer, error in refused.items():
        with acting_as(viewer), pytest.raises(error):
            services.previews.request(slug, {"budget": "25%"})
    for viewer in (Viewer(user="ann"), Viewer(user="bob", shared=frozenset({slug}))):
        with acting_as(viewer):
            assert wanted(services, slug, budget="25%").budgets == ("25%",)
    with acting_as(guest):
        assert not services.previews.may_start()
