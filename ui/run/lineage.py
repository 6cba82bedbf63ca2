"""The section of the Run page that leads to the runs before and after this one."""

from typing import Any

from gradio.components import Component

from ckv_core.errors import CkvError
from storage.records import RunRelative
from ui.components.base import component
from ui.services.services import Services

LineageView = component(__file__, "lineage")
"""Shows {"slug", "parent", "children"}; for {"guest": true} the page hides what guests cannot use.
"""


class LineageSection:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._view = LineageView(elem_id="lineage")
        self.outputs: list[Component] = [self._view]

    def open(self, slug: str) -> list[dict[str, Any] | None]:
        """Where a run comes from, and what was made from it; an empty slug is no run."""
        if self._services.is_guest:
            return [{"guest": True}]
        try:
            return [self._value(slug) if slug else None]
        except CkvError:
            return [None]

    def _value(self, slug: str) -> dict[str, Any]:
        parent, children = self._services.library.relatives(slug)
        return {
            "slug": slug,
            "parent": _relative(parent) if parent else None,
            "children": [_relative(child) for child in children],
        }


def _relative(run: RunRelative) -> dict[str, Any]:
    return {"slug": run.slug, "title": run.title, "kind": run.kind, "state": run.state}
