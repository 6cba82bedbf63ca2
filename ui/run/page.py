"""The Run page: one saved or running run, of one sample or many, by its address; its links."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component

from ckv_core.errors import CkvError
from storage.credentials import CredentialRecord
from storage.repository import is_slug
from ui.caches.keep_section import KeepSection
from ui.components.base import Facts, Fold, Notice, RunActions, RunHead, component, fold_column
from ui.results import views
from ui.results.block import ResultsBlock, shown_areas
from ui.results.live import OPEN_RUN, Feed, cancel_run, find_run, find_view, follow
from ui.results.next_steps import at_point, opened
from ui.results.samples_area import open_sample
from ui.services.library import EXPIRIES_DAYS
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.shell.parts import (
    AT_ONCE,
    PRIVATE,
    SHARED,
    SILENT,
    TO_COMPARE,
    TO_RUNS,
    event_field,
    notice_value,
    tried,
)
from ui.tables.sample_list import CELL_NAMES
from ui.tables.samples import facts_rows

# --- share: a run's own address, and links that open it, which are made, listed and revoked ---

ShareLinks = component(__file__, "share_links")
"""Shows {"slug", "words"}, and to who may share it {"expiries", "rows", "path", "message"} too.

`rows` is a list of {"id", "created", "expires", "state"}. Triggers `issue` with {expiry} and
`revoke` with {id}. `path` is of the link that was just made.
"""
PLAIN = "This app has no logins: anyone who can reach it can open this run by its link."


class ShareSection:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._links = ShareLinks(elem_id="share")
        self.outputs: list[Block] = [self._links]

    def wire(self, slug: gr.Textbox) -> None:
        self._links.issue(self.issue, [slug], [self._links], **AT_ONCE)
        self._links.revoke(self.revoke, [slug], [self._links], **AT_ONCE)

    def open(self, slug: str) -> list[Any]:
        """Show the address, and its links to a viewer who may share the run; empty is no run."""
        if not slug:
            return [None]
        return [self._value(slug) if self._services.may_change(slug) else {"slug": slug}]

    def issue(self, slug: str, event: gr.EventData) -> dict[str, Any]:
        """Make a link; its address is shown this once."""
        try:
            if not is_slug(slug) or not self._services.with_logins:
                return self._value(slug)
            token = self._services.shares.create(slug, str(event_field(event, "expiry")))
        except CkvError as error:
            return self._value(slug, notice=str(error))
        return self._value(slug, path=f"/s/{token}")

    def revoke(self, slug: str, event: gr.EventData) -> dict[str, Any]:
        share_id = event_field(event, "id")
        if not is_slug(slug) or not isinstance(share_id, int) or not 0 < share_id < 2**63:
            return self._value(slug)
        notice = "This link was revoked before."
        try:
            if self._services.shares.revoke(slug, share_id):
                notice = "The link is revoked and no longer opens anything."
        except CkvError as error:
            notice = str(error)
        return self._value(slug, notice=notice)

    def _value(self, slug: str, *, path: str = "", notice: str = "") -> dict[str, Any]:
        if not self._services.with_logins:
            return {"slug": slug, "words": PLAIN}
        try:
            records = self._services.shares.of_run(slug) if is_slug(slug) else []
        except CkvError as error:
            records, notice = [], str(error)
        now = datetime.now(UTC)
        return {
            "slug": slug,
            "expiries": list(EXPIRIES_DAYS),
            "rows": [_row(record, now) for record in records],
            "path": path,
            "message": notice,
        }


def _row(record: CredentialRecord, now: datetime) -> dict[str, Any]:
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


# A reader who followed a score is led to its samples, once they are drawn.
SHOW_CELL = """() => {
  if (!new URLSearchParams(location.search).has("variant")) return;
  const drawn = setInterval(() => {
    if (!document.querySelector("#study-samples tbody tr")?.offsetParent) return;
    clearInterval(drawn);
    document.getElementById("study-cell").scrollIntoView();
  }, 100);
}"""


class RunPage:
    def __init__(self, services: Services) -> None:
        self._services = services
        self.slug = gr.Textbox(visible="hidden", elem_id="slug")
        self.followed = gr.Textbox(visible="hidden", elem_id="followed")
        self.cell = gr.Textbox(visible="hidden", elem_id="cell")
        self.opened = gr.Textbox(visible="hidden", elem_id="opened")
        with gr.Row(elem_id="run-top"):
            self.head = RunHead(elem_id="run-title")
            with gr.Row(elem_id="acts"):
                self._share = ShareSection(services)
                self.actions: Any = RunActions(elem_id="run-actions")
        self.notice = Notice(elem_id="notice")
        self.block = ResultsBlock()
        self._keep = KeepSection(services)
        with fold_column():
            self.receipts = Fold(elem_id="receipts-line")
            self.facts = Facts(elem_id="facts")
        self._tailed: list[Component] = [*self.block.outputs.values(), self.head, self.actions]
        self._tailed += [self.receipts, self.facts]

    def wire(self, page: gr.Blocks) -> None:
        """Connect what opens, follows, stops and resumes the run.

        All is shown by one event; only a run that is not over is followed, through the queue.
        """
        opened: list[Any] = [self.slug, self.cell, self.notice, self.followed]
        opened += [*self.block.areas, *self._tailed]
        sections = [*self._share.outputs, *self._keep.outputs]
        page.load(self.open, None, [*opened, *sections], **AT_ONCE)
        page.load(None, None, None, js=SHOW_CELL, **PRIVATE)
        run = [self.slug, self.cell]
        self.followed.change(self.tail, run, self._tailed, **SHARED)
        stop = partial(cancel_run, self._services)
        self.actions.cancel(stop, [self.slug], [self.notice], **AT_ONCE)
        resumed = self.actions.resume(self.go_on, [self.slug], [self.notice], **AT_ONCE)
        resumed.then(self.tail, run, self._tailed, trigger_mode="multiple", **SHARED)
        self._share.wire(self.slug)
        self._keep.wire(self.slug)
        self.block.wire(self._services, self.slug)
        for name in ("samples", "negatives", "chosen"):
            part: Any = self.block.outputs[name]
            one = part.open(self.open_one, [self.slug], [self.opened, self.notice], **AT_ONCE)
            one.then(None, [self.opened], None, js=OPEN_RUN, **AT_ONCE)

    def open(self, request: gr.Request) -> list[Any]:
        """Show the run that the address names as it is now, or say that there is none."""
        query = request.query_params if request else {}
        cell = urlencode({name: query[name] for name in CELL_NAMES if query.get(name) is not None})
        try:
            view = find_view(self._services, query.get("id"))
        except CkvError as error:
            untouched = [gr.skip() for _ in range(len(self.block.areas) + len(self._tailed))]
            rest = [*self._share.open(""), *self._keep.open(None)]
            refusal = notice_value(str(error), "error", (TO_RUNS, TO_COMPARE))
            return ["", "", refusal, "", *untouched, *rest]
        return [
            view.slug,
            cell,
            SILENT,
            "" if view.is_final else view.slug,
            *shown_areas(view.kind),
            *Feed(self._services, cell).updates(view, datetime.now(UTC)),
            *self._around(view),
            self._facts_of(view),
            *self._share.open(view.slug),
            *self._keep.open(None if view.counts else view),
        ]

    async def tail(self, slug: str, cell: str) -> AsyncIterator[list[Any]]:
        """Follow the run; its details fill up as they become known."""
        known = None

        def rest(view: RunSnapshot) -> list[Any]:
            nonlocal known
            is_prepared = view.result.prompt is not None
            facts = gr.skip() if known == (is_prepared, view.state) else self._facts_of(view)
            known = (is_prepared, view.state)
            return [*self._around(view), facts]

        async for updates in follow(self._services, slug, Feed(self._services, cell), rest, more=4):
            yield updates

    def open_one(self, slug: str, event: gr.EventData) -> list[Any]:
        """Run one sample, or one budget of several, alone, unless that was done before."""
        index = event_field(event, "index")
        try:
            if index is None:
                names = (str(event_field(event, name) or "") for name in ("sample", "budget"))
                return [open_sample(self._services, slug, *names), SILENT]
            run = find_run(self._services, slug)
            return [opened(self._services, at_point(run, index)), SILENT]
        except CkvError as error:
            return ["", notice_value(str(error), "error")]

    def go_on(self, slug: str) -> dict[str, Any]:
        """Run what is left of many samples; those that failed are tried again."""
        return tried(self._services.studies.resume, slug)

    def _facts_of(self, view: RunSnapshot) -> dict[str, Any]:
        if view.counts is None:
            return views.details_value(view)
        return {"rows": facts_rows(self._services.studies.reading(view.slug))}

    def _around(self, view: RunSnapshot) -> list[Any]:
        """Head, actions and the line above the receipts."""
        may_change = self._services.may_change(view.slug)
        return [
            views.head_value(view) | {"guest": self._services.is_guest},
            views.actions_value(view, may_change=may_change),
            {"title": "Receipts and provenance", "hint": views.receipt_hint(view.result)},
        ]
