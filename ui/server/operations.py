"""What operators ask of a running app: /readyz and /metrics. Neither tells anything of a text."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ui.server.route_answers import NO_STORE
from ui.services.services import Services


def operation_routes(services: Services) -> list[Route]:
    """Both routes; each answers GET in a worker thread, with 503 where storage fails."""

    def route_to(answer: Callable[[Services], Response]) -> Callable[[Request], Response]:
        def handle(_: Request) -> Response:
            try:
                return answer(services)
            except CkvError as error:
                return PlainTextResponse(f"{error}\n", 503, headers=NO_STORE)

        return handle

    return [Route("/readyz", route_to(_readyz)), Route("/metrics", route_to(_metrics))]


def _readyz(services: Services) -> Response:
    """200 if runs can be read and a new one would start, else 503 with the reason."""
    services.count_by_state()
    if not services.worker_ready():
        sentence = "The model worker is starting, or does not answer.\n"
        return PlainTextResponse(sentence, 503, headers=NO_STORE)
    return PlainTextResponse("ready\n", headers=NO_STORE)


def _metrics(services: Services) -> Response:
    """Read from the services at each scrape, in Prometheus' text format."""
    registry = CollectorRegistry()
    for name, text, counts in (
        ("ckv_saved_runs", "Runs in storage", services.count_by_state()),
        ("ckv_live_runs", "Unfinished runs in memory", services.live_states()),
    ):
        gauge = Gauge(name, text, ["state"], registry=registry)
        for state, count in sorted(counts.items()):
            gauge.labels(state).set(count)
    worker = Gauge("ckv_worker_up", "Whether the model worker lives", registry=registry)
    worker.set(services.has_worker)
    return Response(generate_latest(registry), 200, NO_STORE, CONTENT_TYPE_LATEST)
