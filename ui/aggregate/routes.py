"""Routes of several runs taken together: figures and their data, for whoever may read them all."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ui.aggregate.chosen import load_together
from ui.charts.ablation_means import ablation_means_csv
from ui.charts.aggregate import AGGREGATE_CHARTS, means_csv, wins_csv
from ui.charts.budget_means import budgets_csv
from ui.charts.layer_bands import layers_csv
from ui.results.figure_routes import NO_CHART, figure_response
from ui.server.route_answers import CSV, NO_STORE, as_file
from ui.services.services import Services
from ui.tables.aggregate import AggregatedRuns

TABLES: dict[str, Callable[[AggregatedRuns], str]] = {
    "budgets": budgets_csv,
    "ladder": ablation_means_csv,
    "layers": layers_csv,
    "means": means_csv,
    "wins": wins_csv,
}


def aggregate_routes(services: Services) -> list[Route]:
    """All of them; each answers GET and runs in a worker thread.

    Nothing is kept: a run of several may be deleted or no longer shared.
    """

    def figure(request: Request) -> Response:
        chart = AGGREGATE_CHARTS.get(request.path_params["name"])
        if chart is None:
            return PlainTextResponse(NO_CHART, 404, NO_STORE)
        try:
            runs = load_together(services, request.path_params["slugs"])
        except CkvError as error:
            return PlainTextResponse(str(error), 404, NO_STORE)
        return figure_response(chart.figure(runs, request.query_params), NO_STORE)

    def csv_of(name: str) -> Callable[[Request], Response]:
        def handle(request: Request) -> Response:
            try:
                runs = load_together(services, request.path_params["slugs"])
            except CkvError as error:
                return PlainTextResponse(str(error), 404, NO_STORE)
            return as_file(f"ckv-several-{name}.csv", TABLES[name](runs), CSV)

        return handle

    return [
        Route("/several/{slugs}/figure/{name}", figure),
        *(Route(f"/several/{{slugs}}/{name}.csv", csv_of(name)) for name in TABLES),
    ]
