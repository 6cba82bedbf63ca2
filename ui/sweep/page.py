"""The Sweep page: budgets x alphas x methods on one prompt, its cost told before it runs."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import gradio as gr

from ckv_core.errors import CkvError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.grid import Cost, sweep_cost
from ui.compare.examples import Example
from ui.compare.prompt_controls import EXAMPLE_TEXTS, show_example
from ui.compare.prompt_page import PromptPage
from ui.results.live import find_run
from ui.services.services import Services
from ui.settings import Settings
from ui.shell.parts import AT_ONCE, SHARED, SILENT, build_confirm, refused, said
from ui.sweep.form import DEFAULTS, SWEEP_CONTROLS, SweepControls, SweepForm, build_sweep_form
from ui.sweep.results import SweepBlock, SweepFeed, build_sweep_results

CHARS_PER_TOKEN = 4


class SweepPage(PromptPage[SweepControls, SweepBlock]):
    def __init__(
        self,
        services: Services,
        settings: Settings,
        *,
        models: Sequence[str],
        examples: Sequence[Example],
    ) -> None:
        gr.Markdown(
            "## Sweep\nMany budgets, alphas and methods on one prompt, read once. The curves say "
            "which budget a method needs and which alpha serves it best.",
            elem_classes=["section"],
        )
        form = partial(build_sweep_form, settings, models, examples)
        super().__init__(services, settings, form, self._build_results, SweepFeed, "/sweep")
        self._wire_form()

    def _build_results(self) -> SweepBlock:
        """The question of cost, which is hidden, and the results."""
        self.confirm, self.question, self.yes, self.no = build_confirm("Run it", "Not now")
        self.offered = gr.Textbox(visible="hidden", elem_id="offered")
        return build_sweep_results(visible=False)

    def wire(self, page: gr.Blocks) -> None:
        inputs = self.form.inputs()
        asked = [*inputs, self.source]
        started = [*self._started, self.confirm, self.question, self.offered]
        self.follow_after(self.run.click(self.ask, asked, started, **AT_ONCE))
        self.follow_after(self.yes.click(self.start, [*asked, self.offered], started, **AT_ONCE))
        shut = [gr.update(visible=False), SILENT]
        self.no.click(lambda: shut, None, [self.confirm, self.notice], **AT_ONCE)
        self.block.wire(self._services, self.slug)
        # One event for form and line: a line told later could overtake what was typed meanwhile.
        filled = [*inputs, self.notice, self.source, self.form.cost_line]
        self.draft.restore_after(page.load(self.open, None, filled, **AT_ONCE))

    def _wire_form(self) -> None:
        form = self.form
        inputs, line, texts = form.inputs(), [form.cost_line], form.pick(*EXAMPLE_TEXTS)
        form.cost_line.value = self.describe(*DEFAULTS.controls())
        for example, button in form.examples:
            filled = button.click(partial(show_example, example), None, texts, **AT_ONCE)
            self.draft.keep_after(filled)
            filled.then(self.describe, inputs, line, **SHARED)
        self.draft.restored.change(self.describe, inputs, line, **SHARED)
        form.context_bar.count(self.describe, inputs, line, trigger_mode="always_last", **SHARED)
        names = ("scenario", "model", "methods", "bounds", "generate")
        blurred = ("budgets", "alphas", "max_new_tokens")
        events: list[Any] = [c.input for c in form.pick(*names)]
        events += [c.blur for c in form.pick(*blurred)]
        gr.on(events, self.describe, inputs, line, trigger_mode="always_last", **SHARED)

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
        closed = [gr.update(visible=False), SILENT, ""]
        try:
            request = SweepForm.from_controls(controls).request()
            cost = self._cost(request)
            question = (
                f"This sweep has {cost.points} points and takes about {cost.duration} (estimated "
                f"from {cost.basis}); run it?"
            )
            if cost.must_ask and agreed != question:
                shown = [gr.update(visible=True), said(question, "warn"), question]
                return ["", SILENT, *[gr.skip()] * 4, *shown]
            parts = f"{len(request.variants)} points"
            refill = SweepForm.from_request
            started = self._start(request, source, lambda it: refill(it).request(), parts)
        except CkvError as error:
            started = self._refused(error)
        return [*started, *closed]

    def describe(self, *values: object) -> dict[str, Any]:
        """Number of points and what they would cost, or what is wrong with them."""
        try:
            form = SweepForm.from_controls(values)
            request = form.request()
            if not form.context.strip():
                points = len(request.variants)
                return said(f"{points} points. Paste a context to see what they cost.")
            cost = self._cost(request)
        except CkvError as error:
            return refused(error, self.form.controls)
        return said(f"{cost.amount}: about {cost.duration}, estimated from {cost.basis}.")

    def open(self, request: gr.Request) -> list[Any]:
        """/sweep?from=SLUG fills the form from a run; of a sweep, the grid too."""
        source = request.query_params.get("from") if request else None
        untouched = [gr.skip() for _ in SWEEP_CONTROLS]
        if not source:
            return [*untouched, SILENT, "", gr.skip()]
        try:
            asked = find_run(self._services, source).request
            form = SweepForm.from_request(asked)
        except CkvError as error:
            return [*untouched, said(str(error), "error"), "", gr.skip()]
        told = f"The prompt of run {source} is filled in; choose what to sweep."
        if asked.kind == "sweep":
            smallest = "the smallest grid that holds the points"
            grid = "the grid" if _is_whole_grid(form, asked) else smallest
            told = f"The prompt and {grid} of run {source} are filled in; change them and run."
        controls = form.controls()
        return [*controls, said(told), source, self.describe(*controls)]

    def _cost(self, request: CompareRequest) -> Cost:
        """Points and estimate of a valid sweep; the prompt is counted where the model is ready."""
        request.validate()
        if counted := self._counted(request):
            return sweep_cost(request, counted.tokens, is_counted=True)
        characters = len(request.context) + len(request.question)
        return sweep_cost(request, max(1, characters // CHARS_PER_TOKEN), is_counted=False)


def _is_whole_grid(form: SweepForm, asked: CompareRequest) -> bool:
    """Whether the form's grid has just the points of a run; an imported one may lack any."""
    try:
        return set(form.request().variants) == set(asked.variants)
    except CkvError:
        return False
