"""Sections of the Run page: lineage (the runs before and after, run again), and share links."""

from datetime import UTC, datetime
from typing import Any

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component

from ckv_core.errors import CkvError, ConfigError
from storage.bundle import FROM_RESULT, IMPORTED
from storage.records import Lineage, RunRelative
from storage.repository import is_slug
from storage.shares import ShareRecord
from ui.components.base import component
from ui.results.live import find_run
from ui.services.services import Services
from ui.services.shares import EXPIRIES_DAYS
from ui.shell.parts import AT_ONCE, event_field

NO_QUESTION = (
    "This run came from a result file, which does not tell the question; use its settings in a "
    "new run and type the question there."
)


LineageView = component(__file__, "lineage")
"""Shows {"slug", "parent", "children", "told", "started"}; triggers `reproduce`.

`started` is a run to go to. For {"guest": true} the page hides what guests cannot use.
"""


class LineageSection:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._view = LineageView(elem_id="lineage")
        self.outputs: list[Component] = [self._view]

    def wire(self, slug: gr.Textbox) -> None:
        self._view.reproduce(self.reproduce, [slug], [self._view], **AT_ONCE)

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


ShareLinks = component(__file__, "share_links")
"""Shows {"plain", "expiries", "rows": [{"id", "created", "expires", "state"}], "path", "told"}.

Triggers `issue` with {expiry} and `revoke` with {id}. `path` is of the link that was just made.
"""


class ShareSection:
    def __init__(self, services: Services) -> None:
        self._services = services
        with gr.Accordion("Share", open=False, visible=False, elem_id="share") as area:
            self._links = ShareLinks(elem_id="share-links")
        self.outputs: list[Block] = [area, self._links]

    def wire(self, slug: gr.Textbox) -> None:
        self._links.issue(self.issue, [slug], [self._links], **AT_ONCE)
        self._links.revoke(self.revoke, [slug], [self._links], **AT_ONCE)

    def open(self, slug: str) -> list[Any]:
        """Show the section to whoever may share the run; an empty slug is no run."""
        if not slug or not self._services.may_change(slug):
            return [gr.skip(), gr.skip()]
        return [gr.update(visible=True), self._value(slug)]

    def issue(self, slug: str, event: gr.EventData) -> dict[str, Any]:
        """Make a link; its address is shown this once."""
        try:
            if not is_slug(slug) or not self._services.with_logins:
                return self._value(slug)
            token = self._services.shares.create(slug, str(event_field(event, "expiry")))
        except CkvError as error:
            return self._value(slug, told=str(error))
        return self._value(slug, path=f"/s/{token}")

    def revoke(self, slug: str, event: gr.EventData) -> dict[str, Any]:
        share_id = event_field(event, "id")
        if not is_slug(slug) or not isinstance(share_id, int) or not 0 < share_id < 2**63:
            return self._value(slug)
        told = "That link is closed already."
        try:
            if self._services.shares.revoke(slug, share_id):
                told = "The link is revoked; it opens nothing any more."
        except CkvError as error:
            told = str(error)
        return self._value(slug, told=told)

    def _value(self, slug: str, *, path: str = "", told: str = "") -> dict[str, Any]:
        if not self._services.with_logins:
            return {"plain": True}
        try:
            records = self._services.shares.of_run(slug) if is_slug(slug) else []
        except CkvError as error:
            records, told = [], str(error)
        now = datetime.now(UTC)
        return {
            "plain": False,
            "expiries": list(EXPIRIES_DAYS),
            "rows": [_row(record, now) for record in records],
            "path": path,
            "told": told,
        }


def _row(record: ShareRecord, now: datetime) -> dict[str, Any]:
    ends = record.expires_at
    if record.revoked_at is not None:
        state = "revoked"
    else:
        state = "open" if ends is None or now < ends else "expired"
    return {
        "id": record.id,
        "created": record.created_at.isoformat(),
        "expires": ends.isoformat() if ends else None,
        "state": state,
    }
