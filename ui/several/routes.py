"""Which saved runs an address names, what they come to together, and their files and chart."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.errors import ConfigError
from ckv_core.experiment.points import Points
from ckv_core.experiment.points_table import points_json
from ckv_core.experiment.runs import together
from storage.repository import is_slug
from ui.charts.points import POINTS_CHART
from ui.results.figure_routes import drawn
from ui.server.route_answers import NO_STORE, routes_of
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.tables.points import points_csv

MAX_RUNS = 100


def read_slugs(text: object) -> list[str]:
    """The names of a list, each once.

    Raises:
        ConfigError: one cannot name a run, or there are too few or too many.
    """
    parts = re.split(r"[\s,]+", text) if isinstance(text, str) else []
    slugs = list(dict.fromkeys(filter(None, parts)))
    if not 2 <= len(slugs) <= MAX_RUNS:
        raise ConfigError(
            f"Choose 2 to {MAX_RUNS} different runs in the list of runs; the address names "
            f"{len(slugs)}."
        )
    for slug in slugs:
        if not is_slug(slug):
            raise ConfigError(f"{slug[:40]!r} is not the name of a run.")
    return slugs


def load_runs(services: Services, text: object) -> list[RunSnapshot]:
    """The runs of a list of names, as far as the reader may see them.

    Raises:
        CkvError: a name is wrong, or a run is not there.
    """
    return [services.snapshot(slug) for slug in read_slugs(text)]


def in_order(runs: Sequence[RunSnapshot]) -> list[RunSnapshot]:
    """The runs, oldest first, as means over prompts take them.

    Raises:
        ConfigError: one is not done.
    """
    for run in runs:
        if run.state != "done" or run.result.model is None:
            raise ConfigError(f"Run {run.slug} is not done; leave it out or wait for its end.")
    return sorted(runs, key=lambda run: run.created_at)


def take_together(runs: Sequence[RunSnapshot]) -> Points:
    """Finished runs over their prompts, whichever of them each variant is in.

    Raises:
        ConfigError: says why the runs cannot be taken together.
    """
    found = together([run.result for run in in_order(runs)])
    if not any(row.place for row in found.rows):
        raise ConfigError("The runs have the full cache alone; add methods to compare with it.")
    if len({run.request.max_new_tokens for run in runs}) > 1:
        moved = "The runs generate different numbers of tokens, which moves agreement."
        return replace(found, notes=[*found.notes, moved])
    return found


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
