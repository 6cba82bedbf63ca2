"""Files and the chart of several runs, for readers who may see all of them."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.analysis.aggregate import Several
from ckv_core.analysis.means_json import means_json
from ui.charts.budget_means import BUDGET_CHART
from ui.results.figure_routes import drawn_routes, reading
from ui.server.route_answers import NO_STORE
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.several.chosen import in_order, load_runs, take_together
from ui.tables.means import means_csv

BASE = "/several/{slugs}"
CHARTS = {BUDGET_CHART.name: BUDGET_CHART}
TABLES: dict[str, Callable[[Several], str]] = {"means": means_csv}


def several_routes(services: Services) -> list[Route]:
    """All of them; each answers GET and runs in a worker thread."""

    def runs(request: Request) -> list[RunSnapshot]:
        return in_order(load_runs(services, request.path_params["slugs"]))

    def document(found: list[RunSnapshot], _: Request) -> Response:
        return JSONResponse(means_json([run.result for run in found]), headers=NO_STORE)

    def source(request: Request) -> Several:
        return take_together(runs(request))

    return [
        *drawn_routes(BASE, source, CHARTS, TABLES, "ckv-several"),
        Route(f"{BASE}/means.json", reading(runs, document)),
    ]
