"""Runs the app: opens what it needs, serves, and closes everything at a signal."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext

from ckv_core.base import logs
from ckv_core.base.home import home_folder
from ckv_core.base.terminal import say
from ckv_core.experiment.cluster import Cluster
from ckv_core.worker.zero import zero_worker
from storage.database import default_url, open_database
from storage.servers import only_server
from ui.accounts.access import EVERYBODY, Access, acting_as
from ui.build import Site, build_site
from ui.compare.examples import shown_example
from ui.server.http_server import HttpServer
from ui.server.private import quiet_tracebacks
from ui.services.services import Services
from ui.settings import Settings


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then leave no process and no unsaved run behind."""
    logs.configure("app")
    quiet_tracebacks()
    settings.check_exposure()
    url = settings.database_url or default_url(home_folder())
    with (
        # First, so that no worker is started for nothing if the port is taken.
        closing(HttpServer(settings.host, settings.port)) as server,
        # Before the signals, of which Ray takes some for itself.
        _cluster(settings) as cluster,
        _stop_signals() as stop,
        closing(open_database(url)) as database,
        only_server(database),
    ):
        access = Access(database, settings.users)
        services = Services(
            database,
            make_worker=zero_worker(os.environ),
            access=access,
            limits=settings.limits,
            cluster=cluster,
        )
        site: Site | None = None
        try:
            site = build_site(services, settings)
            server.start(site.app)
            logs.adopt_loggers()
            with acting_as(EVERYBODY):
                services.warm(settings.model)
            if settings.example:
                services.example.begin(shown_example(settings.model, settings.device))
            say(f"CriticalKV Lab is ready at {server.address}")
            stop.wait()
        finally:
            # Runs end first, so that the pages that follow them let go of their connections.
            services.close()
            if site is not None:
                site.close()
            server.close()


def _cluster(settings: Settings) -> AbstractContextManager[Cluster | None]:
    """The cluster for studies, if one is set."""
    if settings.cluster is None:
        return nullcontext()
    return closing(Cluster(settings.cluster, settings.device))


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; without it SIGTERM would orphan the worker."""
    stop = threading.Event()

    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
