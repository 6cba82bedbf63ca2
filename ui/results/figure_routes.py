"""Answers with charts and tables, and the script that draws charts."""

import functools
import gzip
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import TypeVar

import plotly.graph_objects as go
from starlette.requests import Request
from starlette.responses import Response

from ui.charts.catalog import figure_of
from ui.charts.layout import Chart
from ui.server.route_answers import CSV, NO_STORE, Answer, MissingError, as_file
from ui.services.live_runs import RunSnapshot

T = TypeVar("T")
NO_CHART = "There is no such chart of this run."
# A finished run never changes, but a newer app may draw it in another way.
BRIEF = {"Cache-Control": "private, max-age=60"}


def drawn(
    charts: Mapping[str, Chart[T]], tables: Mapping[str, Callable[[T], str]], file: str
) -> dict[str, Answer[T]]:
    """Answers with charts, and with tables as CSV in files whose names begin with `file`."""

    def figure(source: T, request: Request) -> Response:
        chart = charts.get(request.path_params["name"])
        return _figure(chart and chart.figure(source, request.query_params), NO_STORE)

    def table(name: str) -> Answer[T]:
        return lambda source, _: as_file(f"{file}-{name}.csv", tables[name](source), CSV)

    return {"figure/{name}": figure, **{f"{name}.csv": table(name) for name in tables}}


def run_figure(run: RunSnapshot, request: Request) -> Response:
    """Answers with a chart of a run as JSON."""
    figure = figure_of(run.result, request.path_params["name"], request.query_params)
    return _figure(figure, BRIEF if run.is_final else NO_STORE)


def _figure(figure: go.Figure | None, headers: dict[str, str]) -> Response:
    if figure is None:
        raise MissingError(NO_CHART)
    return Response(figure.to_json(), media_type="application/json", headers=headers)


def plotly_script(_: Request) -> Response:
    """Answers with plotly.js of the installed plotly, packed once."""
    return Response(
        packed_plotly(),
        media_type="text/javascript; charset=utf-8",
        headers={"Content-Encoding": "gzip", "Cache-Control": "private, max-age=86400"},
    )


@functools.cache
def packed_plotly() -> bytes:
    """The same in gzip, as the report carries it too."""
    return gzip.compress(files("plotly").joinpath("package_data/plotly.min.js").read_bytes(), 6)
