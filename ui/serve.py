"""Runs the app: opens what it needs, serves, and closes everything when told to stop."""

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType

from gradio import close_all

from ckv_core import logs
from ckv_core.errors import CkvError, ConfigError
from ckv_core.home import home_folder
from storage.database import default_url, open_database
from storage.server_lock import only_server
from ui.access import EVERYBODY, Access, acting_as
from ui.build import build_app, launch_options
from ui.services import Services
from ui.settings import Settings

NO_MCP = (
    "CKV_MCP=1 needs the package mcp in a version that Gradio takes; install it with "
    "pip install -r requirements-mcp.txt, or leave CKV_MCP out."
)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then leave no process and no unsaved run behind.

    Raises:
        CkvError: others could reach an app without logins, the port is taken, or the database
            cannot be opened or is another server's, or MCP is wanted and not installed.
    """
    logs.configure(settings.log_style, "app")
    settings.check_exposure()
    _check_port(settings)
    url = settings.database_url or default_url(home_folder())
    with (
        _stop_signals() as stop,
        closing(open_database(url)) as database,
        only_server(database),
    ):
        access = Access(database, with_logins=bool(settings.users))
        services = Services(database, access=access, limits=settings.limits)
        try:
            app = build_app(services, settings)
            _, address, _ = app.launch(**launch_options(services, settings))
            logs.adopt_loggers()
            if app.mcp_error:
                raise ConfigError(NO_MCP)
            with acting_as(EVERYBODY):
                services.warm(settings.model)
            sys.stdout.write(f"CriticalKV Lab is ready at {address}\n")
            sys.stdout.flush()
            stop.wait()
        finally:
            # Runs end first, so that the pages that follow them let go of their connections.
            services.close()
            close_all(verbose=False)


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; without it SIGTERM would orphan the worker."""
    stop = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _check_port(settings: Settings) -> None:
    """Find out about a taken port before a worker is started for nothing."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host.strip("[]"), settings.port))
        except OSError as error:
            raise CkvError(
                f"Port {settings.port} on {settings.host} cannot be used ({error.strerror}); stop "
                "the other program or set CKV_PORT to a free port."
            ) from error
