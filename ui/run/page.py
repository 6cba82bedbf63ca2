"""The Run page: one saved or running run by its address, read-only."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.errors import CkvError
from ui.caches.keep_section import KeepSection
from ui.components.facts import Facts
from ui.components.notice import Notice
from ui.results import views
from ui.results.block import build_results
from ui.results.live import Feed, cancel_run, find_run, follow
from ui.results.share import ShareSection
from ui.results.sweep import (
    SHARED_TOP,
    EitherFeed,
    SweepFeed,
    build_sweep_results,
    shown_areas,
)
from ui.run.lineage import LineageSection
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.shell.parts import AT_ONCE, SHARED, SILENT, TO_COMPARE, TO_RUNS, said


class RunPage:
    def __init__(self, services: Services) -> None:
        self._services = services
        self.slug = gr.Textbox(visible="hidden", elem_id="slug")
        self.followed = gr.Textbox(visible="hidden", elem_id="followed")
        self.title = Notice(elem_id="run-title")
        with gr.Row(elem_id="actions"):
            self.cancel = gr.Button(
                "Cancel", visible=False, elem_id="cancel", min_width=110, scale=0
            )
            self.notice = Notice(elem_id="notice")
        self._lineage = LineageSection(services)
        self.block = build_results()
        self.sweep = build_sweep_results(top=self.block.outputs[:SHARED_TOP])
        with gr.Accordion("What was asked", open=False, visible="hidden", elem_id="asked") as area:
            self.facts = Facts(elem_id="facts")
        self._asked = area
        self._keep = KeepSection(services)
        self._share = ShareSection(services)

    def wire(self, page: gr.Blocks) -> None:
        """Connect what opens, follows and stops the run.

        All is shown by one event; only a run that is not over is followed, through the queue.
        """
        opened = [self.slug, self.title, self.notice, self.followed, self.block.area]
        opened += [self.sweep.area, self._asked, *self._tailed]
        sections = [*self._lineage.outputs, *self._share.outputs, *self._keep.outputs]
        page.load(self.open, None, [*opened, *sections], **AT_ONCE)
        self.followed.change(self.tail, [self.slug], self._tailed, **SHARED)
        stop = partial(cancel_run, self._services)
        self.cancel.click(stop, [self.slug], [self.notice], **AT_ONCE)
        self._share.wire(self.slug)
        self._keep.wire(self.slug)
        self.sweep.wire(self._services, self.slug)

    @property
    def _tailed(self) -> list[Component]:
        return [*self.block.outputs, *self.sweep.outputs[SHARED_TOP:], self.cancel, self.facts]

    def open(self, request: gr.Request) -> list[Any]:
        """Show the run that the address names as it is now, or say that there is none."""
        slug = request.query_params.get("id") if request else None
        try:
            snapshot = find_run(self._services, slug)
        except CkvError as error:
            untouched = [gr.skip() for _ in range(3 + len(self._tailed))]
            rest = [*self._lineage.open(""), *self._share.open(""), *self._keep.open(None)]
            told = said(str(error), "error", (TO_RUNS, TO_COMPARE))
            return ["", SILENT, told, "", *untouched, *rest]
        return [
            snapshot.slug,
            said(snapshot.title),
            SILENT,
            "" if snapshot.is_final else snapshot.slug,
            *shown_areas(snapshot.request),
            gr.update(visible=True),
            *self._feed().updates(snapshot, datetime.now(UTC)),
            self._cancel_update(snapshot),
            views.details_value(snapshot),
            *self._lineage.open(snapshot.slug),
            *self._share.open(snapshot.slug),
            *self._keep.open(snapshot),
        ]

    async def tail(self, slug: str) -> AsyncIterator[list[Any]]:
        """Follow the run; its details fill up as they become known."""
        prepared = None

        def rest(snapshot: RunSnapshot) -> list[Any]:
            nonlocal prepared
            known = (snapshot.result.prompt is not None, snapshot.state)
            facts = gr.skip() if known == prepared else views.details_value(snapshot)
            prepared = known
            return [self._cancel_update(snapshot), facts]

        async for updates in follow(self._services, slug, self._feed(), rest, more=2):
            yield updates

    def _feed(self) -> EitherFeed:
        return EitherFeed(Feed(self.block), SweepFeed(self.sweep))

    def _cancel_update(self, snapshot: RunSnapshot) -> dict[str, Any]:
        is_shown = not snapshot.is_final and self._services.may_change(snapshot.slug)
        return gr.update(visible=is_shown)
