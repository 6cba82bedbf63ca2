"""Answers with HTML reports, of one sample and of many, and with one panel of a run alone.

`/run?id=SLUG&embed=PANEL` leads to a panel for who may read the run, in pages of this site;
`/s/TOKEN?embed=PANEL` of a share link answers to anybody, in any page, and sets no cookie.
"""

import threading
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ckv_core.errors import CkvError
from ckv_core.experiment.reading import Reading
from storage.records import RunNotes
from ui.report.report import (
    Contents,
    build_panel,
    build_report,
    contents_of,
    contents_of_samples,
    report_of_samples,
)
from ui.server.route_answers import NO_STORE, Answer, MissingError, as_file
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services

NOT_YET = "This run is not over yet; wait for its end."
BUSY = "Other reports are being made; try again in a moment."
AT_A_TIME = 2  # of users
AT_A_TIME_OF_GUESTS = 1  # of all share links together
HTML = "text/html; charset=utf-8"


def report_answers(services: Services) -> tuple[Answer[RunSnapshot], Answer[Reading]]:
    """The report of a run, and that of a run of many samples."""
    drawn = _in_turn(services)

    def of_run(run: RunSnapshot, _: Request) -> Response:
        if not run.is_final:
            raise MissingError(NOT_YET)
        try:
            notes = services.library.notes(run.slug)
            response = drawn(f"ckv-{run.slug}.html", lambda: build_report(run, notes))
            services.note_export([run.slug])
        except CkvError as error:
            return PlainTextResponse(str(error), 422, headers=NO_STORE)
        return response

    def of_samples(of: Reading, _: Request) -> Response:
        return drawn(f"ckv-study-{of.slug}.html", lambda: report_of_samples(of))

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


# Names in addresses, and the report's section of each, for one budget, several, and many samples.
PANELS = {
    "verdict": ("verdict",),
    "answers": ("answers", "grid", "scores"),
    "map": ("kept", "needles"),
}
NO_PANEL = f"This run has no such panel; there are {', '.join(PANELS)}."
WAIT_S = 10.0  # a page may hold several frames, which come at once
# Its scripts run without an origin: they reach no cookie, storage or address of the app.
POLICY = "sandbox allow-scripts allow-downloads allow-popups allow-popups-to-escape-sandbox"


def panel_answer(services: Services) -> Callable[[str, str, str], Response]:
    """Answers with a panel, given the run's slug, the panel's name and the address of the whole."""
    room = threading.BoundedSemaphore(AT_A_TIME)

    def contents(run: RunSnapshot, only: tuple[str, ...]) -> Contents:
        if run.counts is None:
            return contents_of(run, RunNotes(), only)
        return contents_of_samples(services.studies.reading(run.slug), only)

    def answer(slug: str, name: str, whole: str) -> Response:
        run = services.view(slug)
        if name not in PANELS:
            raise MissingError(NO_PANEL)
        if not run.is_final:
            raise MissingError(NOT_YET)
        if not room.acquire(timeout=WAIT_S):
            return PlainTextResponse(BUSY, 503, headers={**NO_STORE, "Retry-After": "5"})
        try:
            found = contents(run, PANELS[name])
            if not found.sections:
                raise MissingError(NO_PANEL)
            data = build_panel(run.title, found, whole)
        finally:
            room.release()
        return Response(data, 200, {**NO_STORE, "Content-Security-Policy": POLICY}, HTML)

    return answer
