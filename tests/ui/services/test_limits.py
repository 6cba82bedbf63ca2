"""Each limit: what fits is taken, one more is refused with a sentence."""

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from ckv_core.errors import CkvError
from ckv_core.records.codec import to_json
from storage.models import Base, Run
from storage.repository import RunMissingError
from tests.factories.app import (
    ENDLESS,
    STUDY,
    end_of,
    finished,
    script,
    states_of,
    store_study,
)
from tests.ui.served_app import Served, by
from ui.accounts.access import AccessError, Viewer, acting_as
from ui.limits import OF_A_REQUEST, Limits
from ui.services.library import Library, Shares
from ui.services.previews import Previews
from ui.services.services import Services
from ui.services.studies import Studies


def test_services_hold_users_to_their_limits(limited):
    services = limited("ann", "bob", queue=3, queue_per_user=1, runs=2)
    with acting_as(Viewer(user="ann")):
        first = services.start_run(script(ENDLESS))
        with pytest.raises(CkvError, match="1 unfinished"):
            services.start_run(script("steps 1"))
        with pytest.raises(CkvError, match="at most 1,024"):
            services.start_run(replace(script("steps 1"), max_new_tokens=1025))
    with acting_as(Viewer(user="bob")):
        services.start_run(script("steps 1"))
    with acting_as(Viewer(user="ann")):
        services.cancel_run(first)
        end_of(services, first)
        finished(services, "steps 1")
        with pytest.raises(CkvError, match="2 runs are saved"):
            services.start_run(script("steps 1"))


def test_deleting_makes_room_for_a_run_and_undo_has_to_find_room_too(limited):
    services = limited(runs=2)
    first, second = (finished(services, "steps 1") for _ in range(2))
    with pytest.raises(CkvError, match="2 runs are saved"):
        services.start_run(script("steps 1"))
    services.library.delete([first])
    assert states_of(services) == {"done": 1}
    assert services.library.restore([first]) == 1
    services.library.delete([first])
    finished(services, "steps 1")
    with pytest.raises(CkvError, match="2 runs are saved"):
        services.library.restore([first])
    services.library.delete([second])
    assert services.library.restore([first]) == 1


def test_what_can_no_longer_be_restored_is_gone_when_a_run_starts(services, monkeypatch):
    first = finished(services, "steps 1")
    services.library.delete([first])
    monkeypatch.setattr("ui.services.library.UNDO", timedelta(0))
    finished(services, "steps 1")
    with services._database.read() as session:
        assert first not in session.scalars(select(Run.slug)).all()


def test_imported_runs_count_and_the_one_too_many_is_refused(limited):
    services = limited(runs=2)
    slugs = [finished(services, "steps 1") for _ in range(2)]
    assert services.import_bundle(services.export_bundle(slugs)).skipped == slugs
    result = json.dumps(to_json(services.snapshot(slugs[0]).result)).encode()
    with pytest.raises(CkvError, match="Nothing was imported: 1 more would make over 2 saved runs"):
        services.import_bundle(result)


def test_every_limit_is_shown():
    limits = Limits(**{field.name: 3 + i for i, field in enumerate(fields(Limits))})
    shown = {value.split()[0] for _, value in limits.rows(with_logins=True)}
    values = {str(getattr(limits, field.name)) for field in fields(Limits)}
    assert shown == values | {f"{value:,}" for value in OF_A_REQUEST.values()}


# --- owners of runs, over HTTP and at every service method, against the whole app with logins ---


@pytest.fixture(scope="module")
def slug(app) -> str:
    with by("ann"):
        return finished(app.services, "steps 2")


@pytest.fixture(scope="module")
def study(app) -> str:
    """Of the same owner; the services' part for studies is asked of it."""
    with by("ann"):
        return store_study(app.services, owner="ann")


def test_another_users_run_answers_like_a_missing_one(app, slug):
    with app.client("bob") as bob:
        for tail in ("prompt", "result.json", "table.csv", "0/retained", "report.html"):
            theirs = bob.get(f"/data/{slug}/{tail}")
            missing = bob.get(f"/data/zzz999zzz999/{tail}")
            words = theirs.text.replace(slug, "zzz999zzz999")
            assert (theirs.status_code, words) == (missing.status_code, missing.text)
            assert theirs.status_code == 404


# Something for each required argument that names no run.
GIVEN = {
    "request": script("steps 1"), "model": "tiny", "data": b"", "kind": "token", "name": "bob",
    "scope": "Read", "credential_id": 1, "limit": 1, "disabled": True,
    "index": 0, "expiry": "7 days", "share_id": 1, "title": "t", "note": "n",
    "study": STUDY, "samples": (), "text": "{}", "given": {"budget": "9%"}, "address": "here",
}  # fmt: skip


def arguments(method, slug: str) -> dict[str, object]:
    """Something for each required argument; the run for whatever names runs."""
    values = GIVEN | {"slug": slug, "slugs": [slug]}
    wanted = inspect.signature(method).parameters.values()
    return {p.name: values[p.name] for p in wanted if p.default is p.empty}


def is_of_a_run(method) -> bool:
    return bool({"slug", "slugs"} & inspect.signature(method).parameters.keys())


def methods(part) -> dict[str, Callable]:
    """What pages may call of a part of the services, or of its class."""
    found = inspect.getmembers(part, inspect.isroutine)
    return {name: method for name, method in found if not name.startswith("_")}


def parts_of(services: Services) -> dict[str, object]:
    parts = (services, services.shares, services.library, services.studies, services.previews)
    return {type(part).__name__: part for part in parts}


OF_A_RUN = [
    f"{kind.__name__}.{name}"
    for kind in (Services, Shares, Library, Studies, Previews)
    for name, method in methods(kind).items()
    if is_of_a_run(method)
]


@pytest.mark.parametrize("name", OF_A_RUN)
@pytest.mark.parametrize(
    "viewer", [Viewer(user="bob"), Viewer(), None], ids=["bob", "nobody", "unknown"]
)
def test_every_service_method_of_a_run_refuses_strangers(app, slug, study, name, viewer):
    part, _, method_name = name.partition(".")
    of = study if part == "Studies" else slug
    method = getattr(parts_of(app.services)[part], method_name)

    async def first(views):
        return await anext(views)

    def use():
        made = method(**arguments(method, of))
        return asyncio.run(first(made)) if inspect.isasyncgen(made) else made

    with acting_as(viewer):
        if name == "Services.may_change":
            assert use() is False
        elif name == "Library.restore" and viewer == Viewer(user="bob"):
            assert use() == 0
        else:
            with pytest.raises((RunMissingError, AccessError)):
                use()
    with by("ann"):
        assert app.services.snapshot(slug).title == "steps 2"


OPEN_TO_ALL = {"close", "opened", "slugs", "events", "may_start"}  # events of a request alone


def test_every_other_service_method_needs_a_login(app, slug):
    checked = set()
    for part in parts_of(app.services).values():
        for name, method in methods(part).items():
            if is_of_a_run(method) or name in OPEN_TO_ALL:
                continue
            with acting_as(Viewer(shared=frozenset({"abc"}))), pytest.raises(AccessError):
                method(**arguments(method, slug))
            checked.add(name)
    assert {"start_run", "list_runs", "warm", "count_tokens", "model_status"} <= checked


# What identifies a viewer, and what the server does by itself.
OF_THE_SERVER = {
    "close", "opened", "slugs", "viewer", "note_failure", "sign_in", "events",
}  # fmt: skip
READING = {
    "are_runs_of_nobody",
    "choices", "export_bundle", "list_runs", "may_change", "model_status", "note_export", "notes",
    "of_run", "retained", "snapshot", "sign_out", "summary", "view", "watch",
    "decision", "may_start", "reading", "results", "samples", "samples_of_runs",
}  # fmt: skip


def stored(app: Served) -> dict[str, list]:
    with app.services._database.read() as session:
        return {
            table.name: sorted(map(str, session.execute(select(table)).all()))
            for table in Base.metadata.sorted_tables
            if table.name != "audit_entries"  # an export is noted there
        }


@pytest.mark.parametrize("is_guest", [False, True], ids=["token", "guest"])
def test_who_may_only_read_changes_nothing(app, slug, study, is_guest):
    """An API token of the owner, and somebody with links to a run and a study."""
    services, allowed, refused = app.services, set(), set()
    reader = Viewer(user="ann", scope="read", credential=1)
    reader = Viewer(shared=frozenset({slug, study})) if is_guest else reader
    parts = (*parts_of(services).values(), services.accounts, services.administration)
    before = stored(app)
    for part in parts:
        for name, method in methods(part).items():
            if name in OF_THE_SERVER:
                continue
            given = arguments(method, study if part is services.studies else slug)
            if name == "samples_of_runs":
                given = {"slugs": []}
            with acting_as(reader):
                try:
                    method(**given)
                    allowed.add(name)
                except (AccessError, RunMissingError):
                    refused.add(name)
    of_a_run = {"decision", "reading", "retained", "samples", "snapshot", "view", "watch"}
    assert of_a_run <= allowed < READING if is_guest else allowed == READING
    assert {"start_run", "delete", "create", "make_token", "set_disabled", "warm"} <= refused
    assert {"start", "resume", "cost", "add", "request", "save", "why"} <= refused
    assert stored(app) == before


def test_a_bundle_of_another_users_run_becomes_the_importers_own(app, slug):
    with by("ann"):
        bundle = app.services.export_bundle([slug])
        assert app.services.import_bundle(bundle).skipped == [slug]
    with by("bob"):
        (made,) = app.services.import_bundle(bundle).imported
        assert made != slug
        assert app.services.snapshot(made).title == "steps 2"
        app.services.library.delete([made])
