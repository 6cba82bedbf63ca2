"""A server without pages that runs one run after another until it is killed, and says so."""

from multiprocessing.connection import Connection

from storage.database import open_database
from storage.servers import only_server
from tests.factories.app import make_client, script, wait_until, worker_pid
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services

STEPS = 6


def work(url: str, reports: Connection) -> None:
    """Send (slug, state, text) of each run when it starts and when its end was reported.

    Args:
        url: of the database; recovered first, as at every start.
        reports: where to; the first report is the worker's process id.
    """
    database = open_database(url)
    with only_server(database):
        services = Services(database, make_client=make_client)
        reported_worker = 0
        while True:
            slug = services.start_run(script(f"steps {STEPS}"))
            reports.send((slug, "started", ""))
            reports.send((slug, *end_of(services, slug)))
            pid = services._client.worker_pid
            if pid is not None and pid != reported_worker:
                reported_worker = worker_pid(services)
                reports.send((reported_worker, "worker", ""))


def end_of(services: Services, slug: str) -> tuple[str, str]:
    """How a run ended, and the most text of it that anybody saw, before its end or after."""
    seen = [""]

    def is_over(view: RunSnapshot) -> bool:
        seen.append(view.result.variants[0].text if view.result.variants else "")
        return view.is_final

    return wait_until(services, slug, is_over).state, max(seen, key=len)
