"""Answers with the HTML reports of a run and of a run of many samples."""

import threading
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ckv_core.errors import CkvError
from ckv_core.experiment.reading import Reading
from ui.report.contents import read_groups
from ui.report.report import build_report, report_of_samples
from ui.server.route_answers import NO_STORE, Answer, MissingError, as_file
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services

NOT_YET = "This run is not over yet."
BUSY = "Other reports are being made; try again in a moment."
AT_A_TIME = 2  # of users
AT_A_TIME_OF_GUESTS = 1  # of all share links together
HTML = "text/html; charset=utf-8"


def report_answers(services: Services) -> tuple[Answer[RunSnapshot], Answer[Reading]]:
    """The report of a run, and that of a run of many samples."""
    drawn = _in_turn(services)

    def of_run(run: RunSnapshot, request: Request) -> Response:
        if not run.is_final:
            raise MissingError(NOT_YET)
        try:
            without = read_groups(request.query_params.get("without", ""))
            notes = services.library.notes(run.slug)
            name = f"ckv-{run.slug}.html"
            response = drawn(name, lambda: build_report(run, notes, without))
            services.note_export([run.slug])
        except CkvError as error:
            return PlainTextResponse(str(error), 422, headers=NO_STORE)
        return response

    def of_samples(of: Reading, _: Request) -> Response:
        facts = services.studies.facts(of.slug)
        return drawn(f"ckv-study-{of.slug}.html", lambda: report_of_samples(of, facts))

    return of_run, of_samples


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
