"""The Runs page: saved runs, newest first, to open and to delete."""

from typing import Any

import gradio as gr

from ckv_core.errors import CkvError
from ui import views
from ui.pages.parts import RunList
from ui.routes import is_slug
from ui.services import Services

PAGE_SIZE = 25
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


class RunsPage:
    """The page's list and what happens on it."""

    def __init__(self, services: Services) -> None:
        """Lay out the page; call inside its route."""
        self._services = services
        gr.Markdown(
            "## Runs\nEvery run is saved when it starts. Open one, or send its link to a colleague "
            "who can reach this app.",
            elem_classes=["section"],
        )
        self.runs = RunList(elem_id="runs")

    def wire(self, page: gr.Blocks) -> None:
        """Connect opening and deleting."""
        page.load(self.open, None, [self.runs], queue=False, **PRIVATE)
        self.runs.remove(self.remove, None, [self.runs], queue=False, **PRIVATE)

    def open(self, request: gr.Request) -> dict[str, Any]:
        """The page of the list that the address names."""
        asked = request.query_params.get("page", "1") if request else "1"
        return self._page(asked, "")

    def remove(self, event: gr.EventData) -> dict[str, Any]:
        """Delete the run that the reader confirmed."""
        slug, page = _field(event, "slug"), _field(event, "page")
        told = "That run is gone already."
        if is_slug(slug):
            try:
                self._services.delete_run(str(slug))
                told = f"Run {slug} is deleted."
            except CkvError as error:
                told = str(error)
        return self._page(str(page), told)

    def _page(self, asked: str, told: str) -> dict[str, Any]:
        total = self._services.count_runs()
        pages = max(1, -(-total // PAGE_SIZE))
        valid = asked.isascii() and asked.isdigit() and len(asked) < 9
        page = min(max(int(asked), 1), pages) if valid else 1
        runs = self._services.list_runs(limit=PAGE_SIZE, offset=(page - 1) * PAGE_SIZE)
        return {
            "rows": [views.run_row(run) for run in runs],
            "page": page,
            "pages": pages,
            "total": total,
            "told": told,
        }


def _field(event: gr.EventData, name: str) -> object:
    """One field of a client's event, which may be anything."""
    data = getattr(event, "_data", None)
    return data.get(name) if isinstance(data, dict) else None
