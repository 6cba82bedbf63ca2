"""Our own HTTP routes beside Gradio's: run data for the components, exports, the short link."""

import json
from collections.abc import Callable
from dataclasses import astuple, fields
from functools import partial
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ckv_core.experiment.export import export
from ckv_core.experiment.inspect_log import inspect_log
from ckv_core.experiment.result_json import to_json
from ckv_core.experiment.study import SampleResult
from ckv_core.experiment.study_file import write_study
from ckv_core.records.events import RunResult
from storage.repository import is_slug
from ui.charts.ablation import ablation_csv
from ui.charts.bounds import bounds_csv
from ui.charts.run_csv import (
    alphas_csv,
    analysis_csv,
    follow_ups_csv,
    sweep_csv,
    teacher_forced_csv,
)
from ui.charts.study import STUDY_CHARTS
from ui.report.kvpress_code import kvpress_code
from ui.report.routes import report_routes
from ui.results.figure_routes import drawn_routes, figure_routes, reading
from ui.results.views import prompt_value
from ui.server.operations import operation_routes
from ui.server.route_answers import (
    CSV,
    IMMUTABLE,
    NO_RUN,
    NO_STORE,
    as_file,
    give_cookie,
    missing,
    read_index,
)
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.services.shares import COOKIE_PREFIX, COOKIES
from ui.tables.csv_text import csv_text
from ui.tables.points import points_csv
from ui.tables.study import StudyReading
from ui.tables.summary import summary_csv

NO_SHARE = "This link opens nothing (any more); ask the one who sent it for a new one."
NOT_YET = "This run has no such data yet."
TABLES: dict[str, Callable[[RunResult], str]] = {
    "table": summary_csv,
    "forced": teacher_forced_csv,
    "follow_ups": follow_ups_csv,
    "analysis": analysis_csv,
    "bounds": bounds_csv,
    "ablation": ablation_csv,
    "sweep": sweep_csv,
    "alphas": alphas_csv,
}


def build_routes(services: Services) -> list[Route]:
    routes = RunRoutes(services)
    return [
        Route("/healthz", lambda _: JSONResponse({"ok": True}, headers=NO_STORE)),
        *operation_routes(services),
        Route("/r/{slug}", _short_link),
        Route("/s/{token}", routes.open_share),
        *figure_routes(routes.find),
        *report_routes(services, routes.find),
        Route("/data/{slug}/prompt", routes.of_run(routes.prompt)),
        Route("/data/{slug}/{index}/retained", routes.retained),
        Route("/data/{slug}/{index}/evicted", routes.of_run(routes.evicted)),
        Route("/data/{slug}/result.json", routes.of_run(routes.result_json)),
        Route("/data/{slug}/bundle.zip", routes.of_run(routes.bundle)),
        Route("/data/{slug}/kvpress.py", routes.of_run(routes.kvpress)),
        *(
            Route(f"/data/{{slug}}/{name}.csv", routes.of_run(partial(routes.table, name)))
            for name in TABLES
        ),
    ]


class RunRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def open_share(self, request: Request) -> Response:
        """Let this browser read the run of a share link; the token then lies in a cookie."""
        token = request.path_params["token"]
        try:
            slug = self._services.shares.opened(token)
        except CkvError:
            slug = None
        if slug is None:
            return missing(NO_SHARE)
        # The page takes the link from the fragment, which browsers send nowhere, and shows it.
        link = f"#link={quote(token)}" if self._services.with_logins else ""
        response = RedirectResponse(f"/run?id={slug}{link}", 303, NO_STORE)
        if link:
            given = [name.removeprefix(COOKIE_PREFIX) for name in request.cookies]
            others = [each for each in given if is_slug(each) and each != slug]
            for oldest in others[: 1 - COOKIES]:
                response.delete_cookie(COOKIE_PREFIX + oldest)
            give_cookie(response, request, COOKIE_PREFIX + slug, token)
        return response

    def of_run(
        self, answer: Callable[[RunSnapshot, Request], Response | None]
    ) -> Callable[[Request], Response]:
        """A handler; the answer is given the run, and is None where that has no such data yet."""

        def handle(request: Request) -> Response:
            snapshot = self.find(request)
            if snapshot is None:
                return missing(NO_RUN)
            return answer(snapshot, request) or missing(NOT_YET)

        return handle

    def prompt(self, run: RunSnapshot, _: Request) -> Response | None:
        """Token texts of the prompt and where the context lies in it."""
        prompt = run.result.prompt
        return JSONResponse(prompt_value(prompt), headers=_caching(run)) if prompt else None

    def retained(self, request: Request) -> Response:
        """Bits of one variant's kept set, as `RetainedSet` packs them.

        They are complete once they exist, so they may be kept while the run goes on.
        """
        slug = request.path_params["slug"]
        if not is_slug(slug):
            return missing(NO_RUN)
        try:
            kept = self._services.retained(slug, read_index(request.path_params["index"]))
        except CkvError:
            return missing(NO_RUN)
        return _bits(kept.bits) if kept is not None else missing(NOT_YET)

    def evicted(self, run: RunSnapshot, request: Request) -> Response | None:
        """What a variant evicted while it generated, as `HeldSeries.evicted` has it."""
        index, variants = read_index(request.path_params["index"]), run.result.variants
        held = variants[index].held if 0 <= index < len(variants) else None
        return _bits(held.evicted) if held else None

    def result_json(self, run: RunSnapshot, _: Request) -> Response | None:
        if not run.result.variants:
            return None
        self._services.note_export([run.slug])
        text = json.dumps(to_json(run.result, (run.request.answer,)))
        return _file(run, "result.json", text, "application/json")

    def bundle(self, run: RunSnapshot, _: Request) -> Response | None:
        if not run.is_final:
            return None
        try:
            data = self._services.export_bundle([run.slug])
        except CkvError as error:
            return missing(str(error))
        return as_file(f"ckv-{run.slug}.zip", data, "application/zip")

    def kvpress(self, run: RunSnapshot, _: Request) -> Response | None:
        """The variants as code for kvpress, without the run's text."""
        if not run.is_final or run.result.prompt is None:
            return None
        code = kvpress_code(run.result, run.request.max_new_tokens)
        return _file(run, "kvpress.py", code, "text/x-python; charset=utf-8")

    def table(self, name: str, run: RunSnapshot, _: Request) -> Response:
        self._services.note_export([run.slug])
        return _file(run, f"{name}.csv", TABLES[name](run.result), CSV)

    def find(self, request: Request) -> RunSnapshot | None:
        """The run that a path names; None if there is none."""
        slug = request.path_params["slug"]
        try:
            return self._services.snapshot(slug) if is_slug(slug) else None
        except CkvError:
            return None


def _short_link(request: Request) -> Response:
    slug = request.path_params["slug"]
    return RedirectResponse(f"/run?id={slug}", 307) if is_slug(slug) else missing(NO_RUN)


def _caching(snapshot: RunSnapshot) -> dict[str, str]:
    return IMMUTABLE if snapshot.is_final else NO_STORE


def _bits(data: bytes) -> Response:
    return Response(data, media_type="application/octet-stream", headers=IMMUTABLE)


def _file(run: RunSnapshot, name: str, text: str, kind: str) -> Response:
    return as_file(f"ckv-{run.slug}-{name}", text, kind, _caching(run))


_RESULT = tuple(field.name for field in fields(SampleResult))


def results_csv(study: StudyReading) -> str:
    """One line per sample and point: all that is known of it."""
    return csv_text(_RESULT, (astuple(result) for result in study.results))


SAMPLE_TABLES: dict[str, Callable[[StudyReading], str]] = {
    "scores": lambda study: points_csv(study.points),
    "results": results_csv,
}


def study_routes(services: Services) -> list[Route]:
    """Of runs of many samples; each answers GET and runs in a worker thread."""
    studies = services.studies

    def read(request: Request) -> StudyReading:
        return studies.reading(request.path_params["slug"])

    def whole(study: StudyReading, request: Request) -> Response:
        facts = studies.view(study.slug).stored.facts
        with_data = "data" in request.query_params
        samples = studies.samples(study.slug) if with_data else study.samples
        values = export(study.study, samples, study.results, facts, with_data=with_data)
        text = json.dumps(values, ensure_ascii=False)
        return as_file("ckv-study.json", text, "application/json; charset=utf-8")

    def inspect(study: StudyReading, _: Request) -> Response:
        facts, samples = studies.view(study.slug).stored.facts, studies.samples(study.slug)
        values = inspect_log(study.study, samples, study.results, facts)
        return as_file("ckv-inspect.json", json.dumps(values), "application/json")

    def definition(study: StudyReading, _: Request) -> Response:
        text = write_study(study.study)
        return as_file("ckv-study.yaml", text, "application/yaml; charset=utf-8")

    return [
        *drawn_routes("/studies/{slug}", read, STUDY_CHARTS, SAMPLE_TABLES, "ckv-study"),
        Route("/studies/{slug}/study.json", reading(read, whole)),
        Route("/studies/{slug}/inspect.json", reading(read, inspect)),
        Route("/studies/{slug}/study.yaml", reading(read, definition)),
    ]
