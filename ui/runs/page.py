"""The Runs page: find, name, compare and delete runs; its address is the view."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ckv_core.errors import CkvError, StorageError
from storage.models import STATES
from ui.components.base import RunList
from ui.runs.query import NAMES, TEXT_CHARS, read_query, read_slugs, run_row
from ui.server.route_answers import as_file, import_route, refused_as_json
from ui.services.library import UNDO_MINUTES
from ui.services.services import Services
from ui.shell.parts import AT_ONCE, event_field

PAGE_SIZE = 25
HIDDEN = (
    "This app has runs that were made without logins, and nobody sees them; an administrator can "
    "take them over on the page Admin."
)


class RunsPage:
    def __init__(self, services: Services, *, import_mib: int) -> None:
        """Lay out the page; call inside its route. A file to import has up to `import_mib` MiB."""
        self._library = services.library
        self._import_mib = import_mib
        gr.Markdown("## Runs", elem_classes=["section"])
        self.runs = RunList(elem_id="runs")

    def wire(self, page: gr.Blocks) -> None:
        page.load(self.open, None, [self.runs], **AT_ONCE)
        # "once" would drop what a reader does while the answer before is on its way.
        self.runs.act(self.act, None, [self.runs], trigger_mode="multiple", **AT_ONCE)

    def open(self, request: gr.Request) -> dict[str, Any]:
        return self._view(request.query_params if request else {})

    def act(self, event: gr.EventData) -> dict[str, Any]:
        """Change some runs as the reader wants, and show the same view again."""
        names = ("action", "slugs", "query", "title", "note")
        sent = {name: event_field(event, name) for name in names}
        try:
            shown = dict(parse_qsl(str(sent["query"] or "")[:4_000].removeprefix("?")))
        except ValueError:  # too many fields
            shown = {}
        try:
            notice = self._do(sent)
        except CkvError as error:
            return self._view(shown, str(error), tone="error")
        undo = read_slugs(sent["slugs"]) if sent["action"] == "delete" else ()
        return self._view(shown, notice, undo=undo)

    def _do(self, sent: Mapping[str, Any]) -> str:
        if sent["action"] == "refresh":
            return ""
        slugs = read_slugs(sent["slugs"])
        match sent["action"]:
            case "delete":
                self._library.delete(slugs)
                return f"{_runs(len(slugs))} deleted; undo works for {UNDO_MINUTES} minutes."
            case "undo":
                return f"{_runs(self._library.restore(slugs))} restored."
            case "edit":
                texts = [str(sent[name] or "") for name in ("title", "note")]
                self._library.annotate(slugs[0], *texts)
                return "Saved."
            case _:
                raise StorageError("Nothing was done: the page sent an unknown action; reload it.")

    def _view(
        self,
        given: Mapping[str, str],
        notice: str = "",
        *,
        tone: str = "",
        undo: Sequence[str] = (),
    ) -> dict[str, Any]:
        query = read_query(given)
        page, pages = query.page, 0
        while not pages or page > pages:  # an address may name a page that is no longer there
            page = min(page, pages or page)
            offset = (page - 1) * PAGE_SIZE
            runs, total = self._library.list_runs(query.wanted, query.sort, PAGE_SIZE, offset)
            pages = max(1, -(-total // PAGE_SIZE))
        return {
            "rows": [run_row(run) for run in runs],
            "page": page,
            "pages": pages,
            "total": total,
            "message": notice or query.notice or self._hidden_notice(total, given),
            "tone": tone,
            "undo": list(undo),
            "query": {k: given[k][:TEXT_CHARS] for k in NAMES if given.get(k) and k != "page"},
            "import_mib": self._import_mib,
            "choices": {**self._library.choices(), "states": list(STATES)},
        }

    def _hidden_notice(self, total: int, given: Mapping[str, str]) -> str:
        if total or any(given.get(name) for name in NAMES):
            return ""
        return HIDDEN if self._library.are_runs_of_nobody() else ""


def _runs(count: int) -> str:
    return f"{count} {'run' if count == 1 else 'runs'}"


# --- files ------------------------------------------------------------------------------


def library_routes(services: Services) -> list[Route]:
    """Both; the guard in front of them knows who asks and caps what is sent."""

    def take(_: str, data: bytes) -> dict[str, Any]:
        report = services.import_bundle(data)
        return {"message": report.sentence, "imported": report.imported}

    def export(request: Request) -> Response:
        try:
            slugs = read_slugs(request.query_params.get("ids", "").split(","))
            data = services.export_bundle(slugs)
        except CkvError as error:
            return refused_as_json(error)
        name = f"ckv-{slugs[0]}.zip" if len(slugs) == 1 else f"ckv-{len(slugs)}-runs.zip"
        return as_file(name, data, "application/zip")

    return [import_route("/runs/import", take), Route("/runs/export", export)]
