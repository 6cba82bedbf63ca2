"""A browser, served apps, and databases: a test that takes one runs on SQLite and PostgreSQL."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:  # each takes a while to load, and most tests need none
    from playwright.sync_api import Browser

    from ckv_core.models.loaded import LoadedModel
    from storage.database import Database
    from tests.browser import Faults
    from tests.postgresql_server import PostgresqlServer
    from tests.ui.served_app import Served

# Hypothesis's profile of here or of CI, without limits of time: a busy machine breaks no law.
settings.register_profile(
    "patient",
    settings(),
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# For `make test-fast`.
settings.register_profile("fast", settings.get_profile("patient"), max_examples=10)
settings.load_profile("patient")

# Fixtures and folders of tests that need a browser, the app or its worker.
PROCESSES = {"browser", "app", "open_app", "team_app", "services", "stopped"} | {
    "e2e",
    "reliability",
    "worker",
}
# Files that take longest. They come first whatever the seed, or one worker ends a minute late.
LONGEST = ("test_docs_run", "e2e/test_default_model", "test_page_heads", "test_against_reference")
_numbers = count()
gc.disable()  # until all is imported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs processes or PostgreSQL by what it asks for and where it is."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONGEST))  # is stable
    for item in items:
        kinds = getattr(item, "callspec", None)
        if "postgresql" in item.fixturenames or (kinds and "postgresql" in kinds.params.values()):
            item.add_marker(pytest.mark.postgresql)
        if PROCESSES & {*item.fixturenames, *item.path.parts}:
            item.add_marker(pytest.mark.e2e)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """A test that fails in a browser shows what its page then held: no other machine repeats it."""
    report = yield
    page = getattr(item, "funcargs", {}).get("page")
    is_open = hasattr(page, "is_closed") and not page.is_closed()  # others may be a document's
    if report.when == "call" and report.failed and is_open:
        from tests.browser import seen

        report.sections.append(("The page", seen(page)))
    return report


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_left_alone() -> None:
    """Every run of the engine collects garbage, and would look at all imports and served apps."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> str:
    """A tiny model as a user would have it; nobody changes it."""
    from tests.factories.models import saved_model  # transformers takes seconds

    return saved_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def real_model() -> "LoadedModel":
    """The default model, loaded once for all that ask it; nobody changes it."""
    from ckv_core.models.loading import load_model
    from ckv_core.records.run_request import DEFAULT_MODEL

    return load_model(DEFAULT_MODEL, "cpu", "float32")


@pytest.fixture(scope="session")
def postgresql() -> Iterator["PostgresqlServer"]:
    """One real server for all tests; the first that needs it starts it."""
    from tests.postgresql_server import UnavailableError, running_server

    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_server())
        except UnavailableError as reason:
            pytest.skip(str(reason))
        yield server


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def new_url(request, tmp_path_factory) -> Callable[[], str]:
    """Makes URLs of new, blank databases; `parametrize(..., indirect=True)` names one kind."""
    from storage.database import default_url

    if request.param == "sqlite":
        return lambda: default_url(tmp_path_factory.mktemp("database"))
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    return lambda: server.create(f"test{next(_numbers)}")


@pytest.fixture(scope="module")
def opened(new_url) -> Iterator["Database"]:
    """An open database that a module's tests share; hypothesis needs one like it."""
    from storage.database import open_database

    with closing(open_database(new_url())) as database:
        yield database


@pytest.fixture
def database(opened) -> "Database":
    """An open database without runs."""
    from sqlalchemy import text

    with opened.write() as session:
        session.execute(text("DELETE FROM runs"))
    return opened


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Not for the session: only one Playwright can run in a thread, and a test may start one."""
    from tests.browser import FAULTS, chromium

    with chromium() as browser:
        yield browser
        FAULTS.check(browser)


@pytest.fixture
def faults() -> "Faults":
    """For a test whose purpose is a fault, to say which."""
    from tests.browser import FAULTS

    return FAULTS


@pytest.fixture(autouse=True)
def _no_faults(request) -> Iterator[None]:
    """Fails the test on whose pages anything went wrong that it did not expect."""
    if "browser" not in request.fixturenames:
        yield
        return
    browser, faults = map(request.getfixturevalue, ("browser", "faults"))
    yield
    faults.check(browser)


@pytest.fixture(scope="session")
def served_apps(tmp_path_factory) -> Iterator[Callable[[bool], "Served"]]:
    """With logins and MCP, or without both, as most tests need it: built once, and lent empty."""
    from tests.factories.app import empty
    from tests.ui.served_app import Served, served  # Gradio takes seconds
    from ui.settings import LOOPBACK_HOSTS

    apps: dict[bool, Served] = {}
    with ExitStack() as stack:

        def lend(with_logins: bool) -> Served:
            if with_logins not in apps:
                folder = tmp_path_factory.mktemp("served")
                names = LOOPBACK_HOSTS | {"lab.team.test"}
                more = {"mcp": True, "model": "tiny", "allowed_hosts": names}
                apps[with_logins] = stack.enter_context(
                    served(folder, with_logins=with_logins, **(more if with_logins else {}))
                )
            empty(apps[with_logins].services)
            return apps[with_logins]

        yield lend


@pytest.fixture(scope="module")
def open_app(served_apps) -> "Served":
    """The app without logins; a module begins without runs."""
    return served_apps(False)


@pytest.fixture(scope="module")
def team_app(served_apps) -> "Served":
    """The app with the logins of tests/ui/served_app.py; a module begins with an empty database."""
    return served_apps(True)
