"""The lineage section of the Run page: run again the same, the runs before and after."""

from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.errors import CkvError, ConfigError
from storage.bundle import FROM_RESULT, IMPORTED
from storage.records import Lineage, RunRelative
from ui.components.base import ScriptedHtml
from ui.results.live import find_run
from ui.services.services import Services

NO_QUESTION = (
    "This run came from a result file, which does not tell the question; use its settings in a "
    "new run and type the question there."
)
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}


class LineageView(ScriptedHtml):
    """Shows {"slug", "parent", "children", "told", "started"}; triggers `reproduce`.

    `started` is a run to go to. For {"guest": true} the page hides what guests cannot use.
    """

    NAME = "lineage"
    SCRIPTS = ("lineage.js",)


class LineageSection:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._view = LineageView(elem_id="lineage")

    @property
    def outputs(self) -> list[Component]:
        return [self._view]

    def wire(self, slug: gr.Textbox) -> None:
        self._view.reproduce(self.reproduce, [slug], [self._view], **PRIVATE)

    def open(self, slug: str) -> list[dict[str, Any] | None]:
        """Where a run comes from, and what was made from it; an empty slug is no run."""
        if self._services.is_guest:
            return [{"guest": True}]
        try:
            return [self._value(slug) if slug else None]
        except CkvError:
            return [None]

    def reproduce(self, slug: str) -> dict[str, Any] | None:
        try:
            run = find_run(self._services, slug)
            if str(run.result.environment.get(IMPORTED, "")).endswith(FROM_RESULT):
                raise ConfigError(NO_QUESTION)
            started = self._services.start_run(run.request, Lineage(slug, "rerun"))
        except CkvError as error:
            return {"slug": slug, "told": str(error)}
        return {"slug": slug, "started": started}

    def _value(self, slug: str) -> dict[str, Any]:
        parent, children = self._services.library.relatives(slug)
        return {
            "slug": slug,
            "parent": _relative(parent) if parent else None,
            "children": [_relative(child) for child in children],
        }


def _relative(run: RunRelative) -> dict[str, Any]:
    return {"slug": run.slug, "title": run.title, "kind": run.kind, "state": run.state}
