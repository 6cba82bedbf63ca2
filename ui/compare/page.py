"""The Compare page: the form, run and cancel, and the results as they come."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import gradio as gr

from ckv_core.errors import CkvError
from ckv_core.models.catalog import SUGGESTED
from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker.messages import ModelStatus
from storage.bundle import FROM_RESULT, IMPORTED
from ui.compare.examples import Example
from ui.compare.form import DEFAULTS, Form, build_form, preset_updates
from ui.compare.form_values import (
    ADVANCED_PARAMETERS,
    CONTROL_NAMES,
    FormValues,
    describe_variants,
    read_new_tokens,
    with_ablation,
)
from ui.compare.prompt_controls import EXAMPLE_TEXTS, show_example
from ui.compare.prompt_page import PromptPage
from ui.results import views
from ui.results.block import ResultsBlock, build_results
from ui.results.live import Feed, find_run
from ui.services.services import Services
from ui.settings import Settings
from ui.shell.parts import AT_ONCE, SHARED, SILENT, Tone, event_field, refused, said
from ui.tables.study_samples import sample_request

EXAMPLE_SETTINGS = ("variants", "budget", "max_new_tokens")
FILLED_IN = "Settings of run {} are filled in; change them and run, or run the same again."
NO_POSITIONS = (
    " Its external selections are not: take compare --own on the command line, or Python."
)
NO_QUESTION = " It came from a result file, which does not hold the question: type it below."
MODEL_POLL_S = 0.5
MODEL_POLLS = 1_200


class ComparePage(PromptPage[Form, ResultsBlock]):
    def __init__(
        self,
        services: Services,
        settings: Settings,
        *,
        models: Sequence[str],
        examples: Sequence[Example],
    ) -> None:
        form = partial(build_form, settings, models, examples)
        block = partial(build_results, visible=False)
        super().__init__(services, settings, form, block, Feed, "/")
        self._wire_form()
        self._wire_model()
        self._wire_variants()

    def wire(self, page: gr.Blocks) -> None:
        inputs = self.form.inputs()
        asked = [*inputs, self.source]
        self.follow_after(self.run.click(self.start, asked, self._started, **AT_ONCE))
        # One event for form and line: a line told later could overtake what was typed meanwhile.
        filled = [*inputs, *self._started, self.source, self.form.variants_line]
        opened = page.load(self.open, None, filled, **AT_ONCE)
        self.draft.restore_after(opened)
        opened.then(self._share.open, [self.slug], self._share.outputs, **AT_ONCE)
        opened.then(self.tail, [self.slug], self._tailed, **SHARED)
        page.load(self.watch_model, self.form.pick("model"), [self.form.model_line], **SHARED)

    def _wire_form(self) -> None:
        form, bar = self.form, self.form.context_bar
        counted = form.pick("context", "question", "scenario", "model", "max_new_tokens")
        filled = form.pick(*EXAMPLE_TEXTS, *EXAMPLE_SETTINGS)
        for example, button in form.examples:
            event = button.click(partial(fill_example, example), None, filled, **AT_ONCE)
            self.draft.keep_after(event)
            event.then(self.count, counted, [bar], **SHARED)
            event.then(self.describe, form.inputs(), [form.variants_line], **AT_ONCE)
        bar.count(self.count, counted, [bar], trigger_mode="always_last", **SHARED)
        self.draft.restored.change(self.count, counted, [bar], **SHARED)
        self.draft.restored.change(self.describe, form.inputs(), [form.variants_line], **AT_ONCE)
        events = [c.input for c in form.pick("scenario", "model")]
        events.append(form.controls["max_new_tokens"].blur)
        gr.on(events, self.count, counted, [bar], trigger_mode="always_last", **SHARED)

    def _wire_model(self) -> None:
        form, model = self.form, self.form.controls["model"]
        picked = form.model_list.pick(pick_model, None, [model], **AT_ONCE)
        for load in (
            model.input(self.warm, [model], None, **AT_ONCE),
            picked.then(self.warm, [model], None, **AT_ONCE),
        ):
            load.then(self.watch_model, [model], [form.model_line], **SHARED)
        form.model_line.stop(self.stop_loading, None, None, **AT_ONCE)

    def _wire_variants(self) -> None:
        form = self.form
        more, line = form.controls["more_variants"], form.variants_line
        line.value = self.describe(*DEFAULTS.controls())
        added = form.ablation_button.click(
            add_ablation,
            [form.ablation_base, form.controls["variants"], more],
            [more, line],
            **SHARED,
        )
        added.then(self.describe, form.inputs(), [line], **AT_ONCE)
        self.draft.keep_after(added)
        preset, alpha = form.pick("preset", "alpha")
        parameters = form.pick(*(k.name for k in ADVANCED_PARAMETERS if k.name != "preset"))
        events: list[Any] = [
            *(c.input for c in form.pick("variants", "preset")),
            *(c.blur for c in form.pick("budget", "alpha", "more_variants")),
            *(c.blur if isinstance(c, gr.Textbox) else c.input for c in parameters),
        ]
        gr.on(events, self.describe, form.inputs(), [line], trigger_mode="always_last", **AT_ONCE)
        preset.input(preset_updates, [preset, alpha], [alpha, *parameters], **AT_ONCE)

    # --- handlers -----------------------------------------------------------------------

    def start(self, *values: object) -> list[Any]:
        """Start a run made from the last value's, or say why not; what was typed stays."""
        *controls, source = values
        try:
            request = FormValues.from_controls(controls).request()
            specs = request.validate()
            self._counted(request)
            parts = f"{len(specs)} variants, budget {request.defaults['budget']}"
            refill = FormValues.from_request
            return self._start(request, source, lambda it: refill(it).request(), parts)
        except CkvError as error:
            return self._refused(error)

    def open(self, request: gr.Request) -> list[Any]:
        """/?from=SLUG or /?study=SLUG&sample=ID fills the form, /?id=SLUG shows the run too."""
        query = request.query_params if request else {}
        shown, source, study = query.get("id"), query.get("from"), query.get("study")
        controls: list[Any] = [gr.skip() for _ in CONTROL_NAMES]
        slug, told, area, made_from, line = "", SILENT, gr.skip(), "", gr.skip()
        try:
            if study:
                sample = query.get("sample", "")
                controls, budget = self._of_sample(study, sample, query.get("budget", ""))
                line = self.describe(*controls)
                told = said(
                    f"Sample {sample} of a study is filled in, at a budget of {budget}; change "
                    "it and run."
                )
            elif shown or source:
                run = find_run(self._services, shown or source)
                asked = run.request
                controls = FormValues.from_request(asked).controls()
                line = self.describe(*controls)
                slug, made_from = shown or "", shown or source or ""
                if shown:
                    area = gr.update(visible=True)
                else:
                    is_result = str(run.result.environment.get(IMPORTED)).endswith(FROM_RESULT)
                    left_out = NO_QUESTION * is_result + NO_POSITIONS * bool(asked.own_indices)
                    told = said(FILLED_IN.format(source) + left_out)
        except CkvError as error:
            told = said(str(error), "error")
        return [*controls, slug, told, gr.skip(), area, gr.skip(), gr.skip(), made_from, line]

    def _of_sample(self, study: str, sample: str, budget: str) -> tuple[list[object], object]:
        """The controls for a sample of a study with its methods, and their budget."""
        studies = self._services.studies
        reading = studies.reading(study)
        request = sample_request(reading.study, studies.samples(reading.slug), sample, budget)
        return FormValues.from_request(request).controls(), request.defaults["budget"]

    def describe(self, *values: object) -> dict[str, Any]:
        """The variants that would run, or what is wrong with them."""
        try:
            form = FormValues.from_controls(values)
            return said(describe_variants(form, self._settings.limits.variants))
        except CkvError as error:
            return refused(error, self.form.controls)

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
            return refused(error, self.form.controls)

    def warm(self, model: str) -> None:
        if model and model.strip():
            self._services.warm(model.strip())

    def stop_loading(self, event: gr.EventData) -> None:
        """Stop loading or downloading the model ahead; a run that needs it goes on."""
        if name := event_field(event, "name"):
            self._services.cancel_load(str(name))

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
    tone: Tone = "error" if status.failed else "good" if status.ready else ""
    loading = status.model if status.loading else ""
    return said(status.message, tone) | {"loading": loading, "fraction": status.fraction}


def pick_model(event: gr.EventData) -> Any:
    """The model that was chosen in the list of suggestions."""
    name = event_field(event, "name")
    return name if any(model.name == name for model in SUGGESTED) else gr.skip()


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
