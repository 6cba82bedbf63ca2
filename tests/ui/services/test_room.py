"""Bytes of a user's runs, studies and caches together: no more is stored than may be."""

from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import text

from ckv_core.errors import StorageError
from ckv_core.records.kept_caches import KeptFolder
from tests.factories.app import end_of, finished, script, states_of
from tests.factories.kept import kept_bytes
from tests.ui.served_app import by
from tests.ui.services.test_studies import STUDY, over, samples, wait_until
from ui.accounts.access import Viewer, acting_as
from ui.limits import LimitError
from ui.services.services import Services

FULL = 2**20


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))


def grow(services: Services, slug: str, size: int) -> None:
    with services._database.write() as session:
        change = text("UPDATE runs SET stored_bytes = :size WHERE slug = :slug")
        session.execute(change, {"size": size, "slug": slug})


def acts(services: Services, run: str, deleted: str, study: str) -> list[Callable[[], object]]:
    asked = script("steps 1")
    bundle = services.export_bundle([run])
    return [
        partial(services.start_run, asked),
        partial(services.import_bundle, bundle),
        partial(services.library.restore, [deleted]),
        partial(services.studies.start, STUDY, samples(1)),
        partial(services.studies.resume, study),
        partial(services.caches.add, "x", kept_bytes()),
        partial(services.caches.keep, asked, 0, "y"),
    ]


def test_nothing_is_stored_for_a_user_who_has_no_room(limited):
    services = limited("ann", "bob", user_mib=1)
    with acting_as(Viewer(user="ann")):
        run, deleted = (finished(services, "steps 1") for _ in range(2))
        services.library.delete([deleted])
        study = services.studies.start(STUDY, samples(1))
        wait_until(services, study, over)
        do = acts(services, run, deleted, study)
        for full in (run, study):
            grow(services, full, FULL)
            for act in do:
                with pytest.raises(
                    LimitError, match=r"stores 1 MiB \(runs 1\.0, .*\); delete runs"
                ):
                    act()
            grow(services, full, 0)
        assert not KeptFolder("ann").entries()
        assert services.library.list_runs()[1] == 2
    with acting_as(Viewer(user="bob")):
        end_of(services, services.start_run(script("steps 1")))


def test_kept_caches_count_and_deleting_makes_room(limited):
    services = limited("ann", user_mib=1)
    with acting_as(Viewer(user="ann")):
        folder = KeptFolder("ann")
        folder.free("big").write_bytes(bytes(FULL))  # a spoilt one takes room too
        with pytest.raises(LimitError, match="delete kept caches first"):
            services.start_run(script("steps 1"))
        services.caches.delete("big")
        finished(services, "steps 1")


def test_an_import_that_would_be_too_big_leaves_nothing(limited):
    services = limited(user_mib=1)
    run = finished(services, "steps 1")
    bundle = services.export_bundle([run])
    services.library.delete([run])
    other = finished(services, "steps 1")
    grow(services, other, FULL - 10)
    with pytest.raises(StorageError, match=r"room for 0\.0; delete runs"):
        services.import_bundle(bundle)
    assert states_of(services) == {"done": 1}


def test_a_study_that_grows_beyond_it_stops_and_says_why(limited):
    services = limited(user_mib=1)
    slug = services.studies.start(STUDY, samples(16))
    wait_until(services, slug, lambda view: view.counts.done > 2)
    grow(services, slug, FULL)
    view = wait_until(services, slug, over)
    assert view.counts.done < 32
    assert "delete runs first" in view.reason


def test_administrators_see_caches_of_all(app):
    KeptFolder("ann").add("mine", lambda path: path.write_bytes(kept_bytes()))
    size = len(kept_bytes())
    with by("root", is_admin=True):
        storage = app.services.administration.storage()
    assert storage.cache_bytes["ann"] == size
