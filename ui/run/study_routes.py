"""Routes of a study: its charts, its tables as CSV, the whole in other formats, its file."""

import json
from collections.abc import Callable
from dataclasses import astuple, fields

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ckv_core.studies.export import export
from ckv_core.studies.inspect_log import inspect_log
from ckv_core.studies.records import SampleResult
from ckv_core.studies.spec import write_study
from ui.charts.study import STUDY_CHARTS
from ui.results.figure_routes import drawn_routes, reading
from ui.server.route_answers import as_file
from ui.services.services import Services
from ui.tables.csv_text import csv_text
from ui.tables.points import points_csv
from ui.tables.study import StudyReading

_RESULT = tuple(field.name for field in fields(SampleResult))


def results_csv(study: StudyReading) -> str:
    """One line per sample and point: all that is known of it."""
    return csv_text(_RESULT, (astuple(result) for result in study.results))


TABLES: dict[str, Callable[[StudyReading], str]] = {
    "scores": lambda study: points_csv(study.points),
    "results": results_csv,
}


def study_routes(services: Services) -> list[Route]:
    """All of them; each answers GET and runs in a worker thread."""
    studies = services.studies

    def read(request: Request) -> StudyReading:
        return studies.reading(request.path_params["slug"])

    def whole(study: StudyReading, request: Request) -> Response:
        facts = studies.view(study.slug).stored.facts
        with_data = "data" in request.query_params
        samples = studies.samples(study.slug) if with_data else study.samples
        values = export(study.study, samples, study.results, facts, with_data=with_data)
        return _file("study.json", json.dumps(values, ensure_ascii=False), "application/json")

    def inspect(study: StudyReading, _: Request) -> Response:
        facts, samples = studies.view(study.slug).stored.facts, studies.samples(study.slug)
        values = inspect_log(study.study, samples, study.results, facts)
        return _file("inspect.json", json.dumps(values), "application/json")

    def definition(study: StudyReading, _: Request) -> Response:
        return _file("study.yaml", write_study(study.study), "application/yaml")

    return [
        *drawn_routes("/studies/{slug}", read, STUDY_CHARTS, TABLES, "ckv-study"),
        Route("/studies/{slug}/study.json", reading(read, whole)),
        Route("/studies/{slug}/inspect.json", reading(read, inspect)),
        Route("/studies/{slug}/study.yaml", reading(read, definition)),
    ]


def _file(name: str, text: str, kind: str) -> Response:
    return as_file(f"ckv-{name}", text, f"{kind}; charset=utf-8")
