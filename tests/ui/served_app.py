"""The whole app on a free port, with a worker that plays scripts, and users' ways to ask it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gradio as gr
import httpx

from storage.database import default_url, open_database
from tests.factories.app import make_client
from tests.processes import free_port
from ui.accounts.access import EVERYBODY, Access, Viewer, acting_as
from ui.build import build_site
from ui.server import http_server
from ui.server.http_server import HttpServer
from ui.server.identity import SESSION_COOKIE
from ui.services.services import Services
from ui.settings import Settings
from ui.users import HASHER, User

USERS = {
    name: User(HASHER.hash(f"{name}-secret"), is_admin=name == "root")
    for name in ("ann", "bob", "root")
}


@dataclass(frozen=True, slots=True)
class Served:
    """One running app.

    Attributes:
        url: without a slash at the end.
        blocks: for the numbers of its handlers.
    """

    url: str
    services: Services
    blocks: gr.Blocks
    routes: list[Any]

    def client(self, user: str = "", **changes: Any) -> httpx.Client:
        """Somebody's HTTP client; nobody's without a name."""
        if user:
            changes["cookies"] = {SESSION_COOKIE: str(self.services.accounts.sign_in(user))}
        return httpx.Client(base_url=self.url, timeout=60, **changes)

    def call(self, client: httpx.Client, name: str, *data: Any, **more: Any) -> httpx.Response:
        """Call the handler of this name as a hostile client would; `event_data` may be given."""
        body = {"data": list(data), "fn_index": self.handler(name), "session_hash": "s1", **more}
        return client.post("/gradio_api/run/predict", json=body)

    def queued(self, client: httpx.Client, name: str, *data: Any) -> list[dict[str, Any]]:
        """Send an event through Gradio's queue; the messages up to its end."""
        session = f"session{id(client)}"
        body = {"data": list(data), "fn_index": self.handler(name), "session_hash": session}
        client.post("/gradio_api/queue/join", json=body).raise_for_status()
        messages = []
        path = f"/gradio_api/queue/data?session_hash={session}"
        with client.stream("GET", path) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    messages.append(json.loads(line.removeprefix("data:")))
                    if messages[-1]["msg"] == "process_completed":
                        break
        return messages

    def handler(self, name: str) -> int:
        """Number of the handler with this qualified name, e.g. RunPage.tail."""
        for number, fn in self.blocks.fns.items():
            function = getattr(fn.fn, "func", fn.fn)
            if getattr(function, "__qualname__", "") == name:
                return number
        raise AssertionError(f"no handler {name}")


@contextmanager
def served(folder: Path, *, with_logins: bool = True, **changes: Any) -> Iterator[Served]:
    """Serve until the end of the block, with changed settings."""
    users = USERS if with_logins else {}
    settings = replace(Settings.from_environ({}), port=free_port(), users=users, **changes)
    database = open_database(default_url(folder))
    access = Access(database, users)
    services = Services(database, make_client=make_client, access=access, limits=settings.limits)
    with acting_as(EVERYBODY):
        site = build_site(services, settings)
    server = HttpServer(settings.host, settings.port)
    with patch.object(http_server, "STOP_S", 1):  # nobody waits for an answer at the end
        server.start(site.app)
    try:
        yield Served(server.address.rstrip("/"), services, site.blocks, site.gradio.routes)
    finally:
        services.close(timeout_s=1.0)
        site.close()
        server.close()
        database.close()


def by(user: str, **more: Any) -> Any:
    """Within it, this user is the one who asks the services."""
    return acting_as(Viewer(user=user, **more))
