"""Routes of the charts and the token strips: figures as JSON, the script that draws them."""

import functools
import gzip
from collections.abc import Callable
from importlib.resources import files

import plotly.graph_objects as go
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ui.charts.catalog import figure_of
from ui.results.cards import teacher_forced_value
from ui.server.route_answers import NO_STORE, missing
from ui.services.live_runs import RunSnapshot
from ui.services.slugs import read_index

NO_CHART = "There is no such chart of this run."
NO_STRIP = "There is no such strip of this run."
# A finished run never changes, but a newer app may draw it in another way.
BRIEF = {"Cache-Control": "private, max-age=60"}


def figure_routes(find: Callable[[Request], RunSnapshot | None]) -> list[Route]:
    """All of them; each answers GET and runs in a worker thread.

    Args:
        find: the run that a request's path names; None if there is none.
    """

    def figure(request: Request) -> Response:
        snapshot = find(request)
        if snapshot is None:
            return missing(NO_CHART)
        found = figure_of(snapshot.result, request.path_params["name"], request.query_params)
        return figure_response(found, _caching(snapshot))

    def forced(request: Request) -> Response:
        snapshot = find(request)
        if snapshot is None:
            return missing(NO_STRIP)
        value = teacher_forced_value(snapshot.result, read_index(request.path_params["index"]))
        if value is None:
            return missing(NO_STRIP)
        return JSONResponse(value, headers=_caching(snapshot))

    return [
        Route("/plotly.js", _plotly),
        Route("/data/{slug}/figure/{name}", figure),
        Route("/data/{slug}/{index}/forced", forced),
    ]


def figure_response(figure: go.Figure | None, headers: dict[str, str]) -> Response:
    """A figure as JSON; 404 for None."""
    if figure is None:
        return missing(NO_CHART)
    return Response(figure.to_json(), media_type="application/json", headers=headers)


def _plotly(_: Request) -> Response:
    """plotly.js of the installed plotly, packed once."""
    return Response(
        packed_plotly(),
        media_type="text/javascript; charset=utf-8",
        headers={"Content-Encoding": "gzip", "Cache-Control": "private, max-age=86400"},
    )


def _caching(snapshot: RunSnapshot) -> dict[str, str]:
    return BRIEF if snapshot.is_final else NO_STORE


@functools.cache
def packed_plotly() -> bytes:
    """The same in gzip, as the report carries it too."""
    return gzip.compress(files("plotly").joinpath("package_data/plotly.min.js").read_bytes(), 6)
