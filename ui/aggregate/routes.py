"""Routes of several runs taken together: figures and their data, for whoever may read them all."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.routing import Route

from ui.aggregate.chosen import load_together
from ui.charts.ablation_means import ablation_means_csv
from ui.charts.aggregate import AGGREGATE_CHARTS, means_csv, wins_csv
from ui.charts.budget_means import budgets_csv
from ui.charts.layer_bands import layers_csv
from ui.results.figure_routes import drawn_routes
from ui.services.services import Services
from ui.tables.aggregate import AggregatedRuns

TABLES: dict[str, Callable[[AggregatedRuns], str]] = {
    "budgets": budgets_csv,
    "ablation": ablation_means_csv,
    "layers": layers_csv,
    "means": means_csv,
    "wins": wins_csv,
}


def aggregate_routes(services: Services) -> list[Route]:
    """All of them; each answers GET and runs in a worker thread."""

    def runs(request: Request) -> AggregatedRuns:
        return load_together(services, request.path_params["slugs"])

    return drawn_routes("/several/{slugs}", runs, AGGREGATE_CHARTS, TABLES, "ckv-several")
