"""What operators ask of a running app: /readyz and /metrics. Neither tells anything of a text."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ui.server.route_answers import NO_STORE
from ui.services.services import Services


def operation_routes(services: Services) -> list[Route]:
    """Both routes; each answers GET and runs in a worker thread."""
    registry = CollectorRegistry()
    registry.register(RunCollector(services))

    def readyz(_: Request) -> Response:
        """200 if runs can be read and a new one would start, else 503 with the reason."""
        try:
            services.count_by_state()
        except CkvError as error:
            return PlainTextResponse(f"{error}\n", 503, headers=NO_STORE)
        if not services.worker_ready():
            told = "The model worker is starting, or does not answer.\n"
            return PlainTextResponse(told, 503, headers=NO_STORE)
        return PlainTextResponse("ready\n", headers=NO_STORE)

    def metrics(_: Request) -> Response:
        try:
            body = generate_latest(registry)
        except CkvError as error:
            return PlainTextResponse(f"{error}\n", 503, headers=NO_STORE)
        return Response(body, headers=NO_STORE, media_type=CONTENT_TYPE_LATEST)

    return [Route("/readyz", readyz), Route("/metrics", metrics)]


class RunCollector(Collector):
    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        """Saved runs by state, unfinished runs by state, whether the worker lives."""
        yield _by_state("ckv_saved_runs", "Runs in storage", self._services.count_by_state())
        yield _by_state("ckv_live_runs", "Unfinished runs in memory", self._services.live_states())
        alive = float(self._services.worker_alive)
        yield GaugeMetricFamily("ckv_worker_up", "1 while the model worker lives", alive)

    def describe(self) -> Iterator[Metric]:
        """Names without a query: registering must not need the database."""
        for name in ("ckv_saved_runs", "ckv_live_runs", "ckv_worker_up"):
            yield Metric(name, "", "gauge")


def _by_state(name: str, text: str, counts: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["state"])
    for state, count in sorted(counts.items()):
        family.add_metric([state], count)
    return family
