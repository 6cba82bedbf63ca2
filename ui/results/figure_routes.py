"""Routes of the charts and the token strips: figures as JSON, the script that draws them."""

import functools
import gzip
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import TypeVar

import plotly.graph_objects as go
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ui.charts.catalog import figure_of
from ui.charts.chart import Chart
from ui.results.cards import teacher_forced_value
from ui.server.route_answers import CSV, NO_STORE, as_file, missing, read_index
from ui.services.live_runs import RunSnapshot

T = TypeVar("T")
NO_CHART = "There is no such chart of this run."
NO_STRIP = "There is no such strip of this run."
# A finished run never changes, but a newer app may draw it in another way.
BRIEF = {"Cache-Control": "private, max-age=60"}


def figure_routes(find: Callable[[Request], RunSnapshot | None]) -> list[Route]:
    """All of them; each answers GET, and 404 where `find` knows no run of the path."""

    def figure(request: Request) -> Response:
        snapshot = find(request)
        if snapshot is None:
            return missing(NO_CHART)
        figure = figure_of(snapshot.result, request.path_params["name"], request.query_params)
        return figure_response(figure, _caching(snapshot))

    def forced(request: Request) -> Response:
        snapshot, index = find(request), read_index(request.path_params["index"])
        value = snapshot and teacher_forced_value(snapshot.result, index)
        if snapshot is None or value is None:
            return missing(NO_STRIP)
        return JSONResponse(value, headers=_caching(snapshot))

    return [
        Route("/plotly.js", _plotly),
        Route("/data/{slug}/figure/{name}", figure),
        Route("/data/{slug}/{index}/forced", forced),
    ]


def reading(
    read: Callable[[Request], T], answer: Callable[[T, Request], Response]
) -> Callable[[Request], Response]:
    """A handler; what cannot be read is a 404 that says why."""

    def handle(request: Request) -> Response:
        try:
            return answer(read(request), request)
        except CkvError as error:
            return missing(str(error))

    return handle


def drawn_routes(
    base: str,
    read: Callable[[Request], T],
    charts: Mapping[str, Chart[T]],
    tables: Mapping[str, Callable[[T], str]],
    file: str,
) -> list[Route]:
    """Charts and tables of what is read again for each request, as it may no longer be shared.

    Args:
        base: of their addresses.
        read: what a request's path names; CkvError where there is none.
        charts: by name.
        tables: CSV texts by name.
        file: what the names of the files begin with.
    """

    def figure(source: T, request: Request) -> Response:
        chart = charts.get(request.path_params["name"])
        return figure_response(chart and chart.figure(source, request.query_params), NO_STORE)

    def table(name: str) -> Callable[[T, Request], Response]:
        return lambda source, _: as_file(f"{file}-{name}.csv", tables[name](source), CSV)

    return [
        Route(f"{base}/figure/{{name}}", reading(read, figure)),
        *(Route(f"{base}/{name}.csv", reading(read, table(name))) for name in tables),
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
