"""What the Compare and the Sweep page share: a form, Run and Cancel, and a run that is followed."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Generic, TypeVar

import gradio as gr

from ckv_core.errors import CkvError, PromptError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker.messages import TokensCounted
from ui.compare.prompt_controls import Controls
from ui.results import views
from ui.results.block import ResultsBlock
from ui.results.live import (
    SHOW_ADDRESS,
    Feed,
    build_run_row,
    cancel_run,
    count_if_ready,
    follow,
    made_from,
    run_buttons,
)
from ui.results.share import ShareSection
from ui.services.services import Services
from ui.settings import Settings
from ui.shell.drafts import Draft
from ui.shell.parts import AT_ONCE, SHARED, SILENT, refused

F = TypeVar("F", bound=Controls)
B = TypeVar("B", bound=ResultsBlock)


class PromptPage(Generic[F, B]):
    def __init__(
        self,
        services: Services,
        settings: Settings,
        form: Callable[[], F],
        block: Callable[[], B],
        feed: Callable[[B], Feed],
        path: str,
    ) -> None:
        self._services, self._settings, self._feed = services, settings, feed
        self.slug = gr.Textbox(visible="hidden", elem_id="slug")
        self.source = gr.Textbox(visible="hidden", elem_id="source")
        with gr.Accordion("Settings", open=True, elem_id="settings") as self.settings:
            self.form = form()
        self.run, self.cancel, new, self.notice = build_run_row()
        self.draft = Draft(path, [*self.form.inputs(), self.source], new)
        self.block = block()
        self._share = ShareSection(services)
        self._share.wire(self.slug)
        # What `_start` and `_refused` write, and what `tail` does.
        self._started: list[Any] = [self.slug, self.notice, self.settings, self.block.area]
        self._started += [self.run, self.cancel]
        self._tailed = [*self.block.outputs, self.run, self.cancel]
        stop = partial(cancel_run, services)
        self.cancel.click(stop, [self.slug], [self.notice], **AT_ONCE)

    def follow_after(self, start: Any) -> None:
        """Show and follow the run that an event started."""
        start.then(None, [self.slug], None, js=SHOW_ADDRESS, **AT_ONCE)
        start.then(self._share.open, [self.slug], self._share.outputs, **AT_ONCE)
        start.then(self.tail, [self.slug], self._tailed, trigger_mode="multiple", **SHARED)

    async def tail(self, slug: str) -> AsyncIterator[list[Any]]:
        """Follow the run; the buttons turn with its state."""
        feed = self._feed(self.block)
        async for updates in follow(self._services, slug, feed, run_buttons, more=2):
            yield updates

    def _start(
        self,
        request: CompareRequest,
        source: object,
        through_form: Callable[[CompareRequest], CompareRequest],
        parts: str,
    ) -> list[Any]:
        """Start a run made from another, or from none; `parts` says what of."""
        lineage = made_from(self._services, source, request, through_form)
        return [
            self._services.start_run(request, lineage),
            SILENT,
            gr.update(label=f"Settings: {request.model}, {parts}", open=False),
            gr.update(visible=True),
            gr.update(interactive=False),
            gr.update(interactive=True),
        ]

    def _refused(self, error: CkvError) -> list[Any]:
        """In place of `_start`; nothing that was typed changes."""
        return ["", refused(error, self.form.controls), *[gr.skip()] * 4]

    def _counted(self, request: CompareRequest) -> TokensCounted | None:
        """The prompt's tokens where the model is ready.

        Raises:
            CkvError: they are too many, or a budget is too small for them.
        """
        counted = count_if_ready(self._services, request)
        if counted is None or not counted.tokens:
            return None
        told = views.count_value(counted, request)
        if told["tone"] == "error":
            raise PromptError(told["text"])
        request.check_budgets(counted.compressed_tokens, counted.question_tokens)
        return counted
