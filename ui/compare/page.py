"""The Compare page: the form, run and cancel, and the results as they come."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.errors import CkvError, PromptError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker.messages import ModelStatus
from ui.compare.examples import Example
from ui.compare.form import Form, build_form
from ui.compare.forms import (
    ADVANCED_PARAMETERS,
    CONTROL_NAMES,
    FormValues,
    check_lines,
    describe_variants,
    read_new_tokens,
    with_ablation,
)
from ui.compare.model_list import suggested_name
from ui.compare.parameter_controls import preset_updates
from ui.compare.prompt_controls import EXAMPLE_TEXTS, show_example
from ui.results import views
from ui.results.block import ResultsBlock, build_results
from ui.results.live import (
    SHOW_ADDRESS,
    Feed,
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
from ui.shell.parts import PRIVATE, SHARED, SILENT, Tone, said
from ui.tables.study import sample_request

EXAMPLE_SETTINGS = ("variants", "budget", "max_new_tokens")
MODEL_POLL_S = 0.5
MODEL_POLLS = 1_200


class ComparePage:
    """The page's components and what happens on them."""

    def __init__(
        self,
        services: Services,
        settings: Settings,
        *,
        models: Sequence[str],
        examples: Sequence[Example],
    ) -> None:
        """Lay out the page; call inside the Blocks context."""
        self._services = services
        self._settings = settings
        self.slug = gr.Textbox(visible="hidden", elem_id="slug")
        self.source = gr.Textbox(visible="hidden", elem_id="source")
        with gr.Accordion("Settings", open=True, elem_id="settings") as self.settings:
            self.form: Form = build_form(
                models=models, model=settings.model, device=settings.device, examples=examples
            )
        self.run, self.cancel, self.notice = build_run_row()
        self.block: ResultsBlock = build_results(visible=False)
        self._wire_form()

    def wire(self, page: gr.Blocks) -> None:
        """Connect what starts, follows and stops a run."""
        inputs = self.form.inputs()
        started = [self.slug, self.notice, self.settings, self.block.area, self.run, self.cancel]
        asked = [*inputs, self.source]
        start = self.run.click(self.start, asked, started, queue=False, **PRIVATE)
        start.then(None, [self.slug], None, js=SHOW_ADDRESS, **PRIVATE)
        start.then(self.tail, [self.slug], self._tailed, trigger_mode="multiple", **SHARED)
        self.cancel.click(
            partial(cancel_run, self._services), [self.slug], [self.notice], queue=False, **PRIVATE
        )
        shown = [*inputs, *started, self.source]
        opened = page.load(self.open, None, shown, queue=False, **PRIVATE)
        opened.then(self.tail, [self.slug], self._tailed, **SHARED)
        opened.then(self.describe, inputs, [self.form.variants_line], queue=False, **PRIVATE)
        page.load(self.watch_model, self.form.pick("model"), [self.form.model_line], **SHARED)

    @property
    def _tailed(self) -> list[Component]:
        return [*self.block.outputs, self.run, self.cancel]

    def _wire_form(self) -> None:
        form = self.form
        for example, button in form.examples:
            filled = button.click(
                partial(fill_example, example),
                None,
                form.pick(*EXAMPLE_TEXTS, *EXAMPLE_SETTINGS),
                queue=False,
                **PRIVATE,
            )
            filled.then(self.count, self._counted, [form.context_bar], **SHARED)
            filled.then(self.describe, form.inputs(), [form.variants_line], queue=False, **PRIVATE)
        form.context_bar.count(
            self.count, self._counted, [form.context_bar], trigger_mode="always_last", **SHARED
        )
        gr.on(
            [
                *(c.input for c in form.pick("scenario", "model")),
                form.controls["max_new_tokens"].blur,
            ],
            self.count,
            self._counted,
            [form.context_bar],
            trigger_mode="always_last",
            **SHARED,
        )
        model = form.controls["model"]
        model.input(self.warm, [model], None, queue=False, **PRIVATE).then(
            self.watch_model, [model], [form.model_line], **SHARED
        )
        form.model_line.stop(self.stop_loading, None, None, queue=False, **PRIVATE)
        picked = form.model_list.pick(pick_model, None, [model], queue=False, **PRIVATE)
        picked.then(self.warm, [model], None, queue=False, **PRIVATE).then(
            self.watch_model, [model], [form.model_line], **SHARED
        )
        self._wire_variants()

    def _wire_variants(self) -> None:
        form = self.form
        more, line = form.controls["more_variants"], form.variants_line
        form.ablation_button.click(
            add_ablation,
            [form.ablation_base, form.controls["variants"], more],
            [more, line],
            **SHARED,
        ).then(self.describe, form.inputs(), [line], queue=False, **PRIVATE)
        preset, alpha = form.pick("preset", "alpha")
        parameters = form.pick(*(k.name for k in ADVANCED_PARAMETERS if k.name != "preset"))
        events: list[Any] = [
            *(c.input for c in form.pick("variants", "preset")),
            *(c.blur for c in form.pick("budget", "alpha", "more_variants", "own")),
            *(c.blur if isinstance(c, gr.Textbox) else c.input for c in parameters),
        ]
        gr.on(
            events,
            self.describe,
            form.inputs(),
            [form.variants_line],
            queue=False,
            trigger_mode="always_last",
            **PRIVATE,
        )
        preset.input(preset_updates, [preset, alpha], [alpha, *parameters], queue=False, **PRIVATE)

    @property
    def _counted(self) -> list[Component]:
        names = ("context", "question", "scenario", "model", "max_new_tokens")
        return self.form.pick(*names)

    # --- handlers -----------------------------------------------------------------------

    def start(self, *values: object) -> list[Any]:
        """Start a run made from the last value's, or say why not; what was typed stays."""
        *controls, source = values
        try:
            request = FormValues.from_controls(controls).request()
            specs = request.validate()
            self._check_length(request)
            lineage = made_from(
                self._services,
                source,
                request,
                lambda it: FormValues.from_request(it).request(),
            )
            slug = self._services.start_run(request, lineage)
        except CkvError as error:
            return ["", said(str(error), "error"), *[gr.skip()] * 4]
        label = (
            f"Settings: {request.model}, {len(specs)} variants, budget {request.defaults['budget']}"
        )
        return [
            slug,
            SILENT,
            gr.update(label=label, open=False),
            gr.update(visible=True),
            gr.update(interactive=False),
            gr.update(interactive=True),
        ]

    async def tail(self, slug: str) -> AsyncIterator[list[Any]]:
        """Follow the run; the buttons turn with its state."""
        async for updates in follow(self._services, slug, Feed(self.block), run_buttons, more=2):
            yield updates

    def open(self, request: gr.Request) -> list[Any]:
        """/?from=SLUG or /?study=SLUG&sample=ID fills the form, /?id=SLUG shows the run too."""
        query = request.query_params if request else {}
        shown, source = query.get("id"), query.get("from")
        if query.get("study"):
            return self._of_sample(query.get("study"), query.get("sample", ""))
        untouched = [gr.skip() for _ in CONTROL_NAMES]
        rest = [gr.skip() for _ in range(4)]
        if not shown and not source:
            return [*untouched, "", SILENT, *rest, ""]
        slug = shown or source
        try:
            snapshot = find_run(self._services, slug)
        except CkvError as error:
            return [*untouched, "", said(str(error), "error"), *rest, ""]
        controls = FormValues.from_request(snapshot.request).controls()
        if not shown:
            told = said(f"Settings of run {slug} are filled in; change them and run.")
            return [*controls, "", told, *rest, slug]
        return [*controls, slug, SILENT, gr.skip(), gr.update(visible=True), *rest[2:], slug]

    def _of_sample(self, study: str | None, sample: str) -> list[Any]:
        """A sample of a study with its methods in the form, nothing else."""
        rest = [gr.skip() for _ in range(4)]
        try:
            studies = self._services.studies
            found = studies.reading(study)
            request = sample_request(found.study, studies.samples(found.slug), sample)
        except CkvError as error:
            untouched = [gr.skip() for _ in CONTROL_NAMES]
            return [*untouched, "", said(str(error), "error"), *rest, ""]
        told = (
            f"Sample {sample} of a study is filled in, at its smallest budget; change it and run."
        )
        return [*FormValues.from_request(request).controls(), "", said(told), *rest, ""]

    def describe(self, *values: object) -> dict[str, Any]:
        """The variants that would run, or what is wrong with them."""
        try:
            form = FormValues.from_controls(values)
            check_lines(form.more_variants)
            return said(describe_variants(form, self._settings.limits.variants))
        except CkvError as error:
            return said(str(error), "error")

    def count(
        self, context: str, question: str, scenario: str, model: str, max_new_tokens: object
    ) -> dict[str, Any]:
        """The prompt's length against the model's limit."""
        if not context or not context.strip():
            return SILENT
        try:
            request = CompareRequest(
                context=context,
                question=question or "",
                scenario=scenario,  # type: ignore[arg-type]  # validate() refuses other words
                model=str(model or "").strip(),
                max_new_tokens=read_new_tokens(max_new_tokens),
            )
            request.validate()
            return views.count_value(self._services.count_tokens(request), request)
        except CkvError as error:
            return said(str(error), "error")

    def _check_length(self, request: CompareRequest) -> None:
        """Refuse a prompt over the limit before there is a run; a busy worker checks it later."""
        counted = count_if_ready(self._services, request)
        if counted is None:
            return
        value = views.count_value(counted, request)
        if counted.tokens and value["tone"] == "error":
            raise PromptError(value["text"])

    def warm(self, model: str) -> None:
        """Load the chosen model ahead of the run."""
        if model and model.strip():
            self._services.warm(model.strip())

    def stop_loading(self, event: gr.EventData) -> None:
        """Stop loading or downloading the model ahead; a run that needs it goes on."""
        data = getattr(event, "_data", None)
        if isinstance(data, dict) and data.get("name"):
            self._services.cancel_load(str(data["name"]))

    async def watch_model(self, model: str) -> AsyncIterator[dict[str, Any]]:
        """Say how far the worker is with the model, until it is ready or has failed."""
        # Gradio empties the outputs of a generator that yields nothing.
        yield SILENT
        shown = None
        for _ in range(MODEL_POLLS):
            status = self._services.model_status(str(model or "").strip())
            if status is not None:
                if status != shown:
                    shown = status
                    yield status_value(status)
                if not status.loading:
                    return
            await asyncio.sleep(MODEL_POLL_S)


def status_value(status: ModelStatus) -> dict[str, Any]:
    """Value of the ModelLine component."""
    tone: Tone = "error" if status.failed else "good" if status.ready else ""
    loading = status.model if status.loading else ""
    return said(status.message, tone) | {"loading": loading, "fraction": status.fraction}


def pick_model(event: gr.EventData) -> Any:
    """The model that was chosen in the list of suggestions."""
    data = getattr(event, "_data", None)
    name = suggested_name(data.get("name")) if isinstance(data, dict) else None
    return gr.skip() if name is None else name


def fill_example(example: Example) -> list[object]:
    """Values of `EXAMPLE_TEXTS` and `EXAMPLE_SETTINGS`."""
    settings = [list(example.variants), example.budget, example.max_new_tokens]
    return [*show_example(example), *settings]


def add_ablation(base: object, ticked: object, lines: object) -> list[Any]:
    """The typed variants with the ablation's steps added, or why not."""
    try:
        names = ticked if isinstance(ticked, list) else []
        return [with_ablation(str(base or ""), names, str(lines or "")), SILENT]
    except CkvError as error:
        return [gr.skip(), said(str(error), "error")]
