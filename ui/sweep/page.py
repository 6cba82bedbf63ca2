"""The Sweep page: budgets x alphas x methods on one prompt, its cost told before it runs."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.errors import CkvError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.grid import Cost
from ui.compare.examples import Example
from ui.compare.prompt_controls import EXAMPLE_TEXTS, show_example
from ui.results.live import (
    SHOW_ADDRESS,
    build_run_row,
    cancel_run,
    count_if_ready,
    find_run,
    follow,
    made_from,
    run_buttons,
)
from ui.services.services import Services
from ui.settings import Settings
from ui.shell.parts import PRIVATE, SHARED, SILENT, Notice, said
from ui.sweep.form import build_sweep_form
from ui.sweep.forms import SWEEP_CONTROLS, SweepForm, cost_question, cost_sentence, estimate
from ui.sweep.results import SweepFeed, build_sweep_results


class SweepPage:
    """The page's components and what happens on them."""

    def __init__(
        self,
        services: Services,
        settings: Settings,
        *,
        models: Sequence[str],
        examples: Sequence[Example],
    ) -> None:
        """Lay out the page; call inside its route."""
        self._services = services
        gr.Markdown(
            "## Sweep\nMany budgets, alphas and methods on one prompt, read once. The curves say "
            "which budget a method needs and which alpha serves it best.",
            elem_classes=["section"],
        )
        self.slug = gr.Textbox(visible="hidden", elem_id="slug")
        self.source = gr.Textbox(visible="hidden", elem_id="source")
        with gr.Accordion("Settings", open=True, elem_id="settings") as self.settings:
            self.form = build_sweep_form(
                models=models, model=settings.model, device=settings.device, examples=examples
            )
        self.run, self.cancel, self.notice = build_run_row()
        with gr.Row(visible=False, elem_id="confirm") as self.confirm:
            self.question = Notice(elem_id="confirm-text")
            self.yes = gr.Button("Run it", variant="primary", elem_id="confirm-yes", scale=0)
            self.no = gr.Button("Not now", elem_id="confirm-no", scale=0)
        self.offered = gr.Textbox(visible="hidden", elem_id="offered")
        self.block = build_sweep_results(visible=False)
        self._wire_form()

    def wire(self, page: gr.Blocks) -> None:
        """Connect what starts, follows and stops a sweep."""
        inputs = self.form.inputs()
        started = self._started
        asked = [*inputs, self.source]
        confirmed = [*asked, self.offered]
        for event in (
            self.run.click(self.ask, asked, started, queue=False, **PRIVATE),
            self.yes.click(self.start, confirmed, started, queue=False, **PRIVATE),
        ):
            event.then(None, [self.slug], None, js=SHOW_ADDRESS, **PRIVATE)
            event.then(self.tail, [self.slug], self._tailed, trigger_mode="multiple", **SHARED)
        self.no.click(
            lambda: [gr.update(visible=False), SILENT],
            None,
            [self.confirm, self.notice],
            queue=False,
            **PRIVATE,
        )
        self.cancel.click(
            partial(cancel_run, self._services), [self.slug], [self.notice], queue=False, **PRIVATE
        )
        self.block.wire(self._services, self.slug)
        shown = [*inputs, self.notice, self.source]
        opened = page.load(self.open, None, shown, queue=False, **PRIVATE)
        opened.then(self.describe, inputs, [self.form.cost_line], queue=False, **PRIVATE)

    @property
    def _started(self) -> list[Any]:
        return [
            self.slug,
            self.notice,
            self.settings,
            self.block.area,
            self.run,
            self.cancel,
            self.confirm,
            self.question,
            self.offered,
        ]

    @property
    def _tailed(self) -> list[Component]:
        return [*self.block.outputs, self.run, self.cancel]

    def _wire_form(self) -> None:
        form = self.form
        texts = form.pick(*EXAMPLE_TEXTS)
        for example, button in form.examples:
            button.click(partial(show_example, example), None, texts, queue=False, **PRIVATE).then(
                self.describe, form.inputs(), [form.cost_line], **SHARED
            )
        form.context_bar.count(
            self.describe, form.inputs(), [form.cost_line], trigger_mode="always_last", **SHARED
        )
        names = ("scenario", "model", "methods", "bounds", "generate")
        blurred = ("budgets", "alphas", "more_methods", "max_new_tokens")
        events: list[Any] = [
            *(c.input for c in form.pick(*names)),
            *(c.blur for c in form.pick(*blurred)),
        ]
        gr.on(
            events,
            self.describe,
            form.inputs(),
            [form.cost_line],
            trigger_mode="always_last",
            **SHARED,
        )

    # --- handlers -----------------------------------------------------------------------

    def ask(self, *values: object) -> list[Any]:
        """Start a cheap sweep; ask first where it is costly or nobody knows."""
        return self.start(*values, "")

    def start(self, *values: object) -> list[Any]:
        """Start the sweep, or say in one sentence why not; nothing that was typed changes.

        The last two values are the run from which the form was filled in, and the cost question
        that was said yes to; each may be empty. A form that changed since is asked about anew.
        """
        *controls, source, agreed = values
        try:
            form = SweepForm.from_controls(controls)
            request = form.request()
            request.validate()
            cost = self._cost(form)
            question = cost_question(cost)
            if cost.must_ask and agreed != question:
                shown = [gr.update(visible=True), said(question, "warn"), question]
                return ["", SILENT, *[gr.skip()] * 4, *shown]
            lineage = made_from(
                self._services,
                source,
                request,
                lambda it: SweepForm.from_request(it).request(),
            )
            slug = self._services.start_run(request, lineage)
        except CkvError as error:
            return self._refused(error)
        label = f"Settings: {request.model}, {len(request.variants)} points"
        return [
            slug,
            SILENT,
            gr.update(label=label, open=False),
            gr.update(visible=True),
            gr.update(interactive=False),
            gr.update(interactive=True),
            gr.update(visible=False),
            SILENT,
            "",
        ]

    def describe(self, *values: object) -> dict[str, Any]:
        """Number of points and what they would cost, or what is wrong with them."""
        try:
            form = SweepForm.from_controls(values)
            if not form.context.strip():
                return said(f"{len(form.request().variants)} points. {_PASTE}")
            return said(cost_sentence(self._cost(form)))
        except CkvError as error:
            return said(str(error), "error")

    async def tail(self, slug: str) -> AsyncIterator[list[Any]]:
        """Follow the sweep; the buttons turn with its state."""
        async for updates in follow(
            self._services, slug, SweepFeed(self.block), run_buttons, more=2
        ):
            yield updates

    def open(self, request: gr.Request) -> list[Any]:
        """/sweep?from=SLUG fills the form from a run; of a sweep, the grid too."""
        source = request.query_params.get("from") if request else None
        untouched = [gr.skip() for _ in SWEEP_CONTROLS]
        if not source:
            return [*untouched, SILENT, ""]
        try:
            asked = find_run(self._services, source).request
            form = SweepForm.from_request(asked)
        except CkvError as error:
            return [*untouched, said(str(error), "error"), ""]
        told = f"The prompt of run {source} is filled in; choose what to sweep."
        if asked.kind == "sweep":
            grid = (
                "the grid"
                if _is_whole_grid(form, asked)
                else "the smallest grid that holds the points"
            )
            told = f"The prompt and {grid} of run {source} are filled in; change them and run."
        return [*form.controls(), said(told), source]

    def _cost(self, form: SweepForm) -> Cost:
        """Points and estimate; the prompt is counted where the model is ready."""
        request = form.request()
        request.validate()
        return estimate(request, count_if_ready(self._services, request))

    def _refused(self, error: CkvError) -> list[Any]:
        rest = [gr.skip()] * 4
        return ["", said(str(error), "error"), *rest, gr.update(visible=False), SILENT, ""]


def _is_whole_grid(form: SweepForm, asked: CompareRequest) -> bool:
    """Whether the form's grid has just the points of a run; an imported one may lack any."""
    try:
        return set(form.request().variants) == set(asked.variants)
    except CkvError:
        return False


_PASTE = "Paste a context to see what they cost."
