"""Routes of the HTML reports of a run and of a study."""

import threading
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ui.report.contents import read_groups
from ui.report.report import build_report, report_of_study
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
    drawn = _in_turn(services)

    def report(request: Request) -> Response:
        run = find(request)
        if run is None or not run.is_final:
            return missing(NOT_YET if run else NO_RUN)
        try:
            without = read_groups(request.query_params.get("without", ""))
            notes = services.library.notes(run.slug)
            name = f"ckv-{run.slug}.html"
            response = drawn(name, lambda: build_report(run, notes, without))
            services.note_export([run.slug])
        except CkvError as error:
            return PlainTextResponse(str(error), 422, headers=NO_STORE)
        return response

    return [Route("/data/{slug}/report.html", report)]


def study_report_routes(services: Services) -> list[Route]:
    """The report of a run of many samples."""
    drawn = _in_turn(services)

    def draw(slug: str) -> bytes:
        reading, facts = services.studies.reading(slug), services.studies.view(slug).stored.facts
        return report_of_study(slug, reading.study, reading.samples, reading.results, facts)

    def report(request: Request) -> Response:
        slug = request.path_params["slug"]
        try:
            return drawn(f"ckv-study-{slug}.html", lambda: draw(slug))
        except CkvError as error:
            return missing(str(error))

    return [Route("/studies/{slug}/report.html", report)]


def _in_turn(services: Services) -> Callable[[str, Callable[[], bytes]], Response]:
    """Makes a file of this name of what is drawn, or says that others draw."""
    # Drawing takes seconds: a guest of a share link must neither keep every core busy nor hold a
    # place of the users.
    for_users = threading.BoundedSemaphore(AT_A_TIME)
    for_guests = threading.BoundedSemaphore(AT_A_TIME_OF_GUESTS)

    def drawn(name: str, draw: Callable[[], bytes]) -> Response:
        room = for_guests if services.is_guest else for_users
        if not room.acquire(blocking=False):
            return PlainTextResponse(BUSY, 503, headers={**NO_STORE, "Retry-After": "5"})
        try:
            return as_file(name, draw(), HTML)
        finally:
            room.release()

    return drawn
