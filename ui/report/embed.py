"""One panel of a run alone, for the frame of another page: a report of one section, read-only.

`/run?id=SLUG&embed=PANEL` leads here for who may read the run, in pages of the app's own site;
`/s/TOKEN?embed=PANEL` of a share link answers to anybody, in any page, and sets no cookie.
"""

import threading
from collections.abc import Callable

from starlette.responses import PlainTextResponse, Response

from storage.records import RunNotes
from ui.report.contents import GROUPS, contents_of
from ui.report.report import build_panel
from ui.report.routes import BUSY, HTML, NOT_YET
from ui.server.route_answers import NO_STORE, MissingError
from ui.services.services import Services

# Names in addresses, and the report's section of each; of several budgets the grid has the answers.
PANELS = {"verdict": ("verdict",), "answers": ("answers", "grid"), "map": ("kept",)}
NO_PANEL = f"This run has no such panel; there are {', '.join(PANELS)}."
AT_A_TIME = 2
WAIT_S = 10.0  # a page may hold several frames, which come at once
# Its scripts run without an origin: they reach no cookie, storage or address of the app.
POLICY = "sandbox allow-scripts allow-downloads allow-popups allow-popups-to-escape-sandbox"


def panel_answer(services: Services) -> Callable[[str, str, str], Response]:
    """Answers with a panel, given the run's slug, the panel's name and the address of the whole."""
    room = threading.BoundedSemaphore(AT_A_TIME)

    def answer(slug: str, name: str, whole: str) -> Response:
        run = services.snapshot(slug)
        if name not in PANELS:
            raise MissingError(NO_PANEL)
        if not run.is_final:
            raise MissingError(NOT_YET)
        if not room.acquire(timeout=WAIT_S):
            return PlainTextResponse(BUSY, 503, headers={**NO_STORE, "Retry-After": "5"})
        try:
            others = [group for group in GROUPS if group not in PANELS[name]]
            contents = contents_of(run, RunNotes(), others)
            found = [section for section in contents.sections if section.name in PANELS[name]]
            if not found:
                raise MissingError(NO_PANEL)
            data = build_panel(run.title, contents, found[0], whole)
        finally:
            room.release()
        return Response(data, 200, {**NO_STORE, "Content-Security-Policy": POLICY}, HTML)

    return answer
