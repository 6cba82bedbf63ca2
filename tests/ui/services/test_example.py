"""The app's own example run: made once, after all other runs, and read by everybody."""

import dataclasses

import pytest

from ckv_core.worker.messages import ModelStatus
from storage.library import list_runs
from storage.records import RunFilter
from storage.repository import RunMissingError
from tests.factories.app import ENDLESS, generating, script, wait_until
from tests.processes import wait_for
from tests.ui.served_app import by
from ui.accounts.access import Access
from ui.services import example
from ui.services.example import OWNER
from ui.users import User, Users


@pytest.fixture
def teams(make_services, file_database, monkeypatch):
    """Makes services with logins, one after the other, on one database."""
    monkeypatch.setattr(example, "LOOK_S", 0.02)

    def make():
        return make_services(
            access=Access(file_database, Users({"ann": User(""), "bob": User("")}))
        )

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
