"""Routes of a study: its charts, its tables as CSV, the whole in other formats, its file."""

import json
from collections.abc import Callable
from dataclasses import astuple, fields

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ckv_core.studies.bibtex import bibtex
from ckv_core.studies.export import export
from ckv_core.studies.inspect_log import inspect_log
from ckv_core.studies.records import SampleResult, Study
from ckv_core.studies.spec import write_study
from ui.charts.study import STUDY_CHARTS
from ui.results.figure_routes import NO_CHART, figure_response
from ui.server.route_answers import NO_STORE, missing
from ui.services.services import Services
from ui.tables.csv_text import csv_text
from ui.tables.study import StudyReading

_RESULT = tuple(field.name for field in fields(SampleResult))
_FIGURES = ("n", "failed", "score", "low", "high", "cache_share", "head_l1")


def scores_csv(reading: StudyReading) -> str:
    """One line per point, shares from 0 to 1, unrounded."""
    return csv_text(
        ("variant", "budget", *_FIGURES),
        (
            (row.point.variant, row.point.budget or "", *(getattr(row, f) for f in _FIGURES))
            for row in reading.scores.rows
        ),
    )


def results_csv(reading: StudyReading) -> str:
    """One line per sample and point: all that is known of it."""
    return csv_text(_RESULT, (astuple(result) for result in reading.results))


TABLES: dict[str, Callable[[StudyReading], str]] = {"scores": scores_csv, "results": results_csv}

TEXTS: dict[str, tuple[Callable[[Study], str], str]] = {
    "study.yaml": (write_study, "application/yaml"),
    "papers.bib": (bibtex, "application/x-bibtex"),
}


def study_routes(services: Services) -> list[Route]:
    """All of them; each answers GET and runs in a worker thread."""

    def answered(answer: Callable[[StudyReading, Request], Response]) -> Callable[..., Response]:
        def handle(request: Request) -> Response:
            try:
                return answer(services.studies.reading(request.path_params["slug"]), request)
            except CkvError as error:
                return missing(str(error))

        return handle

    def figure(reading: StudyReading, request: Request) -> Response:
        chart = STUDY_CHARTS.get(request.path_params["name"])
        if chart is None:
            return PlainTextResponse(NO_CHART, 404, NO_STORE)
        return figure_response(chart.figure(reading, request.query_params), NO_STORE)

    def table(name: str) -> Callable[[StudyReading, Request], Response]:
        return lambda reading, _: _file(TABLES[name](reading), "text/csv", f"study-{name}.csv")

    def whole(reading: StudyReading, request: Request) -> Response:
        facts = services.studies.view(reading.slug).stored.facts
        with_data = "data" in request.query_params
        samples = services.studies.samples(reading.slug) if with_data else reading.samples
        values = export(reading.study, samples, reading.results, facts, with_data=with_data)
        return _file(json.dumps(values, ensure_ascii=False), "application/json", "study.json")

    def inspect(reading: StudyReading, _: Request) -> Response:
        facts = services.studies.view(reading.slug).stored.facts
        samples = services.studies.samples(reading.slug)
        values = inspect_log(reading.study, samples, reading.results, facts)
        return _file(json.dumps(values), "application/json", "inspect.json")

    def text(name: str) -> Callable[[StudyReading, Request], Response]:
        write, kind = TEXTS[name]
        return lambda reading, _: _file(write(reading.study), kind, name)

    return [
        Route("/studies/{slug}/figure/{name}", answered(figure)),
        *(Route(f"/studies/{{slug}}/{name}.csv", answered(table(name))) for name in TABLES),
        Route("/studies/{slug}/study.json", answered(whole)),
        Route("/studies/{slug}/inspect.json", answered(inspect)),
        *(Route(f"/studies/{{slug}}/{name}", answered(text(name))) for name in TEXTS),
    ]


def _file(text: str, kind: str, name: str) -> Response:
    disposition = f'attachment; filename="ckv-{name}"'
    headers = {**NO_STORE, "Content-Disposition": disposition}
    return Response(text, media_type=f"{kind}; charset=utf-8", headers=headers)
