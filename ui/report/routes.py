"""Routes of the HTML reports of a run and of a study."""

import threading
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ui.report.contents import read_groups
from ui.report.report import build_report
from ui.report.study import report_of_study
from ui.server.route_answers import NO_RUN, NO_STORE, as_file, missing
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services

NOT_YET = "This run is not over yet."
BUSY = "Other reports are being made; try again in a moment."
AT_A_TIME = 2  # of users
AT_A_TIME_OF_GUESTS = 1  # of all share links together
HTML = "text/html; charset=utf-8"


def report_routes(services: Services, find: Callable[[Request], RunSnapshot | None]) -> list[Route]:
    """The report answers GET, and 404 where `find` knows no run of the path."""
    # Drawing takes seconds: a guest of a share link must neither keep every core busy nor hold a
    # place of the users.
    for_users = threading.BoundedSemaphore(AT_A_TIME)
    for_guests = threading.BoundedSemaphore(AT_A_TIME_OF_GUESTS)

    def answer(request: Request, run: RunSnapshot) -> Response:
        without = read_groups(request.query_params.get("without", ""))
        room = for_guests if services.is_guest else for_users
        if not room.acquire(blocking=False):
            return PlainTextResponse(BUSY, 503, headers={**NO_STORE, "Retry-After": "5"})
        try:
            data = build_report(run, services.library.notes(run.slug), without)
        finally:
            room.release()
        return as_file(f"ckv-{run.slug}.html", data, HTML)

    def report(request: Request) -> Response:
        run = find(request)
        if run is None or not run.is_final:
            return missing(NOT_YET if run else NO_RUN)
        try:
            response = answer(request, run)
            services.note_export([run.slug])
        except CkvError as error:
            return PlainTextResponse(str(error), 422, headers=NO_STORE)
        return response

    return [Route("/data/{slug}/report.html", report)]


def study_report_routes(services: Services) -> list[Route]:
    room = threading.BoundedSemaphore(1)

    def report(request: Request) -> Response:
        studies = services.studies
        if not room.acquire(blocking=False):
            return PlainTextResponse(BUSY, 503, headers={**NO_STORE, "Retry-After": "5"})
        try:
            reading = studies.reading(request.path_params["slug"])
            facts = studies.view(reading.slug).stored.facts
            data = report_of_study(
                reading.slug, reading.study, reading.samples, reading.results, facts
            )
        except CkvError as error:
            return missing(str(error))
        finally:
            room.release()
        return as_file(f"ckv-study-{reading.slug}.html", data, HTML)

    return [Route("/studies/{slug}/report.html", report)]
