"""Files and the chart of several runs, for readers who may see all of them."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.experiment.points import Points
from ckv_core.experiment.points_table import points_json
from ckv_core.experiment.runs import together
from ui.charts.points import POINTS_CHART
from ui.results.figure_routes import drawn
from ui.server.route_answers import NO_STORE, routes_of
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.several.chosen import in_order, load_runs, take_together
from ui.tables.points import points_csv

BASE = "/several/{slugs}"
CHARTS = {POINTS_CHART.name: POINTS_CHART}
TABLES: dict[str, Callable[[Points], str]] = {"means": points_csv}


def several_routes(services: Services) -> list[Route]:
    """All of them; each answers GET and runs in a worker thread."""

    def runs(request: Request) -> list[RunSnapshot]:
        return in_order(load_runs(services, request.path_params["slugs"]))

    def document(found: list[RunSnapshot], _: Request) -> Response:
        return JSONResponse(points_json(together([run.result for run in found])), headers=NO_STORE)

    def source(request: Request) -> Points:
        return take_together(runs(request))

    files = drawn(CHARTS, TABLES, "ckv-several")
    return routes_of(BASE, source, files) + routes_of(BASE, runs, {"means.json": document})
