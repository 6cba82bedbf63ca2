"""The Run page: one saved or running run by its address, read-only."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import gradio as gr

from ckv_core.errors import CkvError
from ui import views
from ui.pages.lineage import LineageSection
from ui.pages.live import Feed, cancel_run, find_run, follow
from ui.pages.parts import SILENT, Facts, Notice, said
from ui.pages.results import build_results
from ui.pages.share import ShareSection
from ui.pages.sweep_results import EitherFeed, SweepFeed, build_sweep_results
from ui.services import RunSnapshot, Services

PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


class RunPage:
    """The page's components and what happens on them."""

    def __init__(self, services: Services) -> None:
        """Lay out the page; call inside its route."""
        self._services = services
        self.slug = gr.Textbox(visible="hidden", elem_id="slug")
        self.title = Notice(elem_id="run-title")
        with gr.Row(elem_id="actions"):
            self.cancel = gr.Button(
                "Cancel", visible=False, elem_id="cancel", min_width=110, scale=0
            )
            self.notice = Notice(elem_id="notice")
        self._lineage = LineageSection(services)
        self.block = build_results(visible=False)
        self.sweep = build_sweep_results(visible=False, status=self.block.outputs[0])
        with gr.Accordion("What was asked", open=False, visible=False, elem_id="asked") as area:
            self.facts = Facts(elem_id="facts")
        self._asked = area
        self._share = ShareSection(services)

    def wire(self, page: gr.Blocks) -> None:
        """Connect what opens, follows and stops the run."""
        self._lineage.wire(page, self.slug)
        self._share.wire(page, self.slug)
        opened = page.load(
            self.open,
            None,
            [
                self.slug,
                self.title,
                self.notice,
                self.block.area,
                self.sweep.area,
                self._asked,
                self.facts,
            ],
            queue=False,
            **PRIVATE,
        )
        opened.then(
            self.tail,
            [self.slug],
            [*self.block.outputs, *self.sweep.outputs[1:], self.cancel, self.facts],
            concurrency_limit=None,
            **PRIVATE,
        )
        self.cancel.click(
            partial(cancel_run, self._services), [self.slug], [self.notice], queue=False, **PRIVATE
        )
        self.sweep.wire(self._services, self.slug)

    def open(self, request: gr.Request) -> list[Any]:
        """Show the run that the address names, or say that there is none."""
        slug = request.query_params.get("id") if request else None
        try:
            snapshot = find_run(self._services, slug)
        except CkvError as error:
            return ["", SILENT, said(str(error), "error"), *[gr.skip()] * 4]
        is_sweep = snapshot.request.kind == "sweep"
        facts = views.details_value(snapshot)
        return [
            slug,
            said(snapshot.title),
            SILENT,
            gr.update(visible=not is_sweep),
            gr.update(visible=is_sweep),
            gr.update(visible=True),
            facts,
        ]

    async def tail(self, slug: str) -> AsyncIterator[list[Any]]:
        """Follow the run; its details fill up as they become known."""
        prepared = None
        may_cancel = self._services.may_change(slug)

        def rest(snapshot: RunSnapshot) -> list[Any]:
            nonlocal prepared
            known = (snapshot.result.prompt is not None, snapshot.state)
            facts = gr.skip() if known == prepared else views.details_value(snapshot)
            prepared = known
            return [gr.update(visible=may_cancel and not snapshot.is_final), facts]

        feed = EitherFeed(Feed(self.block), SweepFeed(self.sweep))
        async for updates in follow(self._services, slug, feed, rest, more=2):
            yield updates
