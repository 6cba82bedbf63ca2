"""The Compare page: the form, and Run, which leads to the page of the run."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from ckv_core.errors import CkvError, ConfigError, PromptError, about
from ckv_core.experiment.runs import sample_request
from ckv_core.experiment.study import MAX_SAMPLES
from ckv_core.experiment.tasks import listed
from ckv_core.models.catalog import KNOWN
from ckv_core.records.run_request import RunRequest
from ckv_core.worker.messages import ModelStatus
from storage.bundle import FROM_RESULT, IMPORTED
from ui.compare.form import (
    DEFAULTS,
    HARNESS,
    SOURCES,
    build_form,
    build_intro,
    shown_areas,
)
from ui.compare.form_values import (
    CONTROL_NAMES,
    FormValues,
    describe_advanced,
    describe_variants,
    read_new_tokens,
    read_run_slugs,
    read_specs,
    read_text,
    with_ablation,
)
from ui.compare.samples import (
    NO_NAME,
    cost_sentence,
    data_text,
    fingerprint,
    form_of_study,
    is_exported,
    plan_sentence,
    sample_map,
    study_of,
)
from ui.compare.setup_link import NAME as SETUP
from ui.compare.setup_link import NO_TEXT, WRONG, form_of, setup_of
from ui.results import views
from ui.results.live import OPEN_RUN, count_if_ready, find_run
from ui.services.services import Services
from ui.settings import Settings
from ui.shell.parts import (
    AT_ONCE,
    FILLS,
    SHARED,
    SILENT,
    Draft,
    Tone,
    event_field,
    notice_value,
    refused,
    settle_after,
)

_TEXTS = ("context", "question", "answer", "scenario", "protect")
OF_COUNT = ("context", "question", "scenario", "model", "max_new_tokens")
OF_EXAMPLES = (*_TEXTS, "variants", "budget", "max_new_tokens")
FILLED_IN = "The settings of run {} are filled in. Change them, or run them again."
SETUP_FILLED_IN = "The setup of the link is filled in. Change it, or run it."
COUNTING = "A few prompts are counted for an estimate of time and memory."
EXPORTED = "An exported run: Run stores it with its results."
STUDY_FILLED_IN = "The settings of {} are filled in. Press Run to resume it; its results stay."
MORE_MADE = " It has {:,} samples more."
MORE_PASTED = " Add about {:,} lines below those that are there."
NO_POSITIONS = (
    " External selections are left out: use compare --own on the command line, or Python."
)
NO_QUESTION = " It came from a result file, which does not hold the question: type it below."
ADDRESS_CHARS = 1_000
_OFFERED = {source for _, source in SOURCES + HARNESS}
MODEL_POLL_S = 0.5
MODEL_POLLS = 1_200


class ComparePage:
    def __init__(
        self,
        services: Services,
        settings: Settings,
        *,
        models: Sequence[str],
        examples: Mapping[str, RunRequest],
    ) -> None:
        self._services, self._settings = services, settings
        self.slug = gr.Textbox(visible="hidden", elem_id="slug")
        self._examples = [*examples.values()]
        self._watches: dict[str, object] = {}  # the last of each page, by its session
        self.form = build_form(settings, models, [*examples])
        self.notice = self.form.notice
        build_intro()
        self.draft = Draft("/", self.form.inputs(), self.form.new)
        self._described = [self.form.variants_line, self.form.sample_map, self.form.plan[0]]
        self._described.append(self.form.advanced_line)
        self._wire_form()
        self._wire_variants()

    def wire(self, page: gr.Blocks) -> None:
        inputs = self.form.inputs()
        started = self.form.run.click(self.start, inputs, [self.slug, self.notice], **SHARED)
        started.then(None, [self.slug], None, js=OPEN_RUN, **AT_ONCE)
        filled = [*inputs, self.notice]
        # What the lines say is of the form as it then stands, from the address or as it was typed.
        opened = page.load(self.open, None, filled, js=FILLS, **AT_ONCE)
        settled = self.draft.restore_after(opened)
        bar, origin = self.form.context_bar, self.form.pick("mode", "source")
        settled.then(shown_areas, origin, self.form.areas, **AT_ONCE)
        settled.then(self.describe, inputs, self._described, **AT_ONCE)
        settled.then(self.count, self.form.pick(*OF_COUNT), [bar], **SHARED)
        settled.then(self.watch_model, self.form.pick("model"), [self.form.model_line], **SHARED)

    def _wire_form(self) -> None:
        form, bar = self.form, self.form.context_bar
        counted = form.pick(*OF_COUNT)
        filled = form.pick(*OF_EXAMPLES)
        picked = bar.example(self.fill_example, None, filled, js=FILLS, **AT_ONCE)
        settle_after(picked)
        self.draft.keep_after(picked)
        picked.then(self.count, counted, [bar], **SHARED)
        picked.then(self.describe, form.inputs(), self._described, **AT_ONCE)
        link = form.setup_link
        link.ask(self.link_setup, form.inputs(), [link, self.notice], **AT_ONCE)
        bar.count(self.count, counted, [bar], trigger_mode="always_last", **SHARED)
        origin = form.pick("mode", "source")
        gr.on([c.input for c in origin], shown_areas, origin, form.areas, **AT_ONCE)
        events = [c.input for c in form.pick("scenario", "model")]
        events.append(form.controls["max_new_tokens"].blur)
        gr.on(events, self.count, counted, [bar], trigger_mode="always_last", **SHARED)
        model = form.controls["model"]
        load = model.input(self.warm, [model], None, trigger_mode="always_last", **AT_ONCE)
        # Each pick begins a watch, which ends the one before.
        again: dict[str, Any] = {"trigger_mode": "multiple", **SHARED}
        load.then(self.watch_model, [model], [form.model_line], **again)
        form.model_line.stop(self.stop_loading, None, None, **AT_ONCE)

    def _wire_variants(self) -> None:
        form = self.form
        chips, line = form.controls["variants"], form.variants_line
        line.value, _, _, form.advanced_line.value = self.describe(*DEFAULTS.controls())
        added = chips.ablate(add_ablation, [chips], [chips, line], **SHARED)
        added.then(self.describe, form.inputs(), self._described, **AT_ONCE)
        self.draft.keep_after(added)
        for field, slide in zip(form.pick("budget", "alpha"), form.slides, strict=True):
            field.change(None, [field], [slide], js="(text) => ({ text })", **AT_ONCE)
        chosen = ("mode", "variants", "source", "task", "metric", "scenario", "analysis")
        typed = ("context", "answer", "budget", "alpha", "max_new_tokens", "protect", "follow_ups")
        of_many = (
            "lm_eval",
            "baseline",
            "data",
            "columns",
            "runs",
            "length",
            "samples",
            "name",
            "tolerance",
        )
        events: list[Any] = [c.input for c in form.pick(*chosen)]
        events += [c.blur for c in form.pick(*typed, *of_many)]
        more_often: dict[str, Any] = {"trigger_mode": "always_last", **AT_ONCE}
        gr.on(events, self.describe, form.inputs(), self._described, **more_often)
        plan, cost = form.plan
        latest: dict[str, Any] = {"trigger_mode": "always_last", **SHARED}
        plan.change(self.price, form.inputs(), [cost], **latest)

    # --- handlers -----------------------------------------------------------------------

    def start(self, *values: object) -> list[Any]:
        """Start a run, or say why not."""
        try:
            form = FormValues.from_controls(values)
            started = self._start_text if form.mode == "text" else self._start_samples
            return [started(form), SILENT]
        except CkvError as error:
            return ["", self._refused(error)]

    def _start_text(self, form: FormValues) -> str:
        """The slug of the run that was started."""
        request = form.request()
        request.validate()
        with about("model"):
            self._services.check_model(request.model)
        self._check_counted(request)
        return self._services.start_run(request)

    def _start_samples(self, form: FormValues) -> str:
        """The slug of the run of many samples; an exported one is stored at once."""
        studies = self._services.studies
        if is_exported(form):
            return studies.add(form.data)
        study, text = study_of(form), data_text(form)
        with about("model"):
            self._services.check_model(study.model)
        with about("data" if text else ""):
            samples = studies.samples_of(study, text)
        return studies.start(study, samples)

    def price(self, *values: object) -> Iterator[dict[str, Any]]:
        """What many samples would take; nothing while they cannot run, which Run explains."""
        try:
            form = FormValues.from_controls(values)
            if form.mode == "text" or not plan_sentence(form):
                yield SILENT
                return
            yield notice_value(COUNTING)
            study = study_of(replace(form, name=form.name.strip() or NO_NAME))
            found = self._services.studies.cost(study, data_text(form))
            yield notice_value(cost_sentence(study, found))
        except CkvError:
            yield SILENT

    def _refused(self, error: CkvError) -> dict[str, Any]:
        controls = self.form.controls
        return refused(error, controls | {"budgets": controls["budget"]})

    def _check_counted(self, request: RunRequest) -> None:
        """Where the model is ready, CkvError for too many tokens or a budget too small for them."""
        counted = count_if_ready(self._services, request)
        if counted is None or not counted.tokens:
            return
        value = views.count_value(counted, request)
        if value["tone"] == "error":
            with about(value["field"]):
                raise PromptError(value["text"])
        request.check_budgets(counted.compressed_tokens, counted.question_tokens)

    def open(self, request: gr.Request) -> list[Any]:
        """Fill the form as the address says.

        /?from=SLUG of a run, with &budget=5%,10% at other budgets and &source=pasted for many
        samples; /?study=SLUG&sample=ID of one sample, /?study=SLUG&add=N of them all and others,
        /?runs=SLUG,SLUG with their texts as samples, /?source=task with another source, /?setup=...
        of a setup link.
        """
        query = request.query_params if request else {}
        parent, study, runs = query.get("from"), query.get("study"), query.get("runs")
        setup = query.get(SETUP)
        controls: list[Any] = [gr.skip() for _ in CONTROL_NAMES]
        notice = SILENT
        try:
            if study and "add" in query:
                controls, notice = self._of_study(study, query["add"])
            elif study:
                sample = query.get("sample", "")
                controls, budget = self._of_sample(study, sample, query.get("budget", ""))
                notice = notice_value(
                    f"Sample {sample} of run {study} is filled in, at a budget of {budget}. Change "
                    "it and run."
                )
            elif parent:
                controls, notice = self._of_run(parent)
                controls = _with_query(controls, query)
            elif setup:
                controls, notice = self._of_setup(setup), notice_value(SETUP_FILLED_IN)
            elif runs:
                slugs = read_run_slugs(runs)
                self._services.studies.samples_of_runs(slugs)  # which says what is wrong with them
                controls = _only(source="runs", runs=", ".join(slugs))
                notice = notice_value(
                    f"Filled in as samples: the texts of {len(slugs)} stored runs."
                )
            elif query.get("source") in _OFFERED:
                controls = _only(source=query["source"])
        except CkvError as error:
            notice = notice_value(str(error), "error")
        return [*controls, notice]

    def _of_run(self, slug: str) -> tuple[list[object], dict[str, Any]]:
        """The controls for a run of one text, and what of it they cannot hold."""
        run = find_run(self._services, slug)
        form = FormValues.from_request(run.request)
        is_result = str(run.result.environment.get(IMPORTED)).endswith(FROM_RESULT)
        left_out = NO_QUESTION * is_result + NO_POSITIONS * bool(run.request.own_indices)
        words = FILLED_IN.format(slug) + left_out + _other_points(form, run.request)
        return form.controls(), notice_value(words)

    def _of_study(self, slug: str, add: str) -> tuple[list[object], dict[str, Any]]:
        """The controls that run a study again, with so many samples more."""
        studies = self._services.studies
        reading = studies.reading(slug)
        more = int(add) if add.isdecimal() and len(add) < len(str(MAX_SAMPLES)) else 0
        form = form_of_study(reading.study, studies.samples(reading.slug), more)
        words = STUDY_FILLED_IN.format(reading.study.name)
        if more:
            words += MORE_MADE.format(more) if form.source != "pasted" else MORE_PASTED.format(more)
        return form.controls(), notice_value(words)

    def _of_sample(self, study: str, sample: str, budget: str) -> tuple[list[object], object]:
        """The controls for a sample of a study with its methods, and their budget."""
        studies = self._services.studies
        reading = studies.reading(study)
        request = sample_request(reading.study, studies.samples(reading.slug), sample, budget)
        return FormValues.from_request(request).controls(), request.budgets[0]

    def fill_example(self, event: gr.EventData) -> list[object]:
        """Values of `OF_EXAMPLES` of the example that was picked."""
        at = event_field(event, "at")
        if not isinstance(at, int) or not 0 <= at < len(self._examples):
            return [gr.skip() for _ in OF_EXAMPLES]
        form = FormValues.from_request(self._examples[at])
        values = dict(zip(CONTROL_NAMES, form.controls(), strict=True))
        return [values[name] for name in OF_EXAMPLES]

    def link_setup(self, *values: object) -> list[Any]:
        """The setup for a link, or why there is none."""
        try:
            setup, has_text = setup_of(FormValues.from_controls(values))
        except CkvError as error:
            return [None, self._refused(error)]
        return [{"setup": setup}, SILENT if has_text else notice_value(NO_TEXT, "warn")]

    def _of_setup(self, setup: str) -> list[object]:
        """The controls of a setup link; ConfigError where one holds none of its control's words."""
        values = form_of(setup).controls()
        for value, control in zip(values, self.form.inputs(), strict=True):
            is_list = isinstance(control, gr.Radio | gr.Dropdown)
            is_open = not is_list or getattr(control, "allow_custom_value", False)
            words = {word for _, word in control.choices} if not is_open else set()
            if not is_open and not {*listed(value)} <= words:
                raise ConfigError(WRONG)
        return values

    def describe(self, *values: object) -> list[Any]:
        """What would run, or what is wrong with it; the first of many samples; and Advanced."""
        try:
            form = FormValues.from_controls(values)
            advanced = notice_value(describe_advanced(form))
            if form.mode == "text":
                return [notice_value(describe_variants(form)), None, SILENT, advanced]
            shown = sample_map(form)
        except CkvError as error:
            return [self._refused(error), None, SILENT, gr.skip()]
        try:
            plan = notice_value(plan_sentence(form)) | {"key": fingerprint(form)}
            words = notice_value(EXPORTED if is_exported(form) else "")
        except CkvError as error:
            return [self._refused(error), shown, SILENT, advanced]
        return [words, shown, plan, advanced]

    def count(
        self, context: str, question: str, scenario: str, model: str, max_new_tokens: object
    ) -> dict[str, Any]:
        """The prompt's length against the model's limit."""
        if not context or not context.strip():
            return SILENT
        try:
            request = RunRequest(
                context=context,
                question=question or "",
                scenario=scenario,  # type: ignore[arg-type]  # validate() refuses other words
                model=str(model or "").strip(),
                max_new_tokens=max(1, read_new_tokens(max_new_tokens)),
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

    async def watch_model(self, model: str, request: gr.Request) -> AsyncIterator[dict[str, Any]]:
        """Say how far the worker is with the model, until it is ready or has failed.

        The page's next watch ends this one.
        """
        session = str(request.session_hash)
        own = self._watches[session] = object()
        shown = None
        try:
            # Gradio empties the outputs of a generator that yields nothing.
            yield SILENT
            for _ in range(MODEL_POLLS):
                if self._watches.get(session) is not own:
                    # Gradio sends a generator's last value once more when it ends.
                    yield gr.skip()
                    return
                status = self._services.model_status(str(model or "").strip())
                if status is not None:
                    if status != shown:
                        shown = status
                        yield status_value(status)
                    if not status.loading:
                        return
                await asyncio.sleep(MODEL_POLL_S)
        finally:
            if self._watches.get(session) is own:
                del self._watches[session]


def _only(**values: str) -> list[Any]:
    """Updates of the controls, of which these alone are filled, for many samples."""
    filled = {"mode": "many", **values}
    return [filled.get(name, gr.skip()) for name in CONTROL_NAMES]


def _with_query(controls: Sequence[object], query: Mapping[str, str]) -> list[object]:
    """The controls of a run with the budgets and the source of samples that the address names."""
    values = dict(zip(CONTROL_NAMES, controls, strict=True))
    if budgets := query.get("budget", "")[:ADDRESS_CHARS]:
        values["budget"] = budgets
    if query.get("source") in _OFFERED:
        values |= {"mode": "many", "source": query["source"]}
    return [*values.values()]


def _other_points(form: FormValues, request: RunRequest) -> str:
    """What to add where the form gives other points than the run had; an import may lack some."""
    if not request.places or len(form.request().points()) == len(request.places):
        return ""
    return " They are the smallest grid that holds its points."


def status_value(status: ModelStatus) -> dict[str, Any]:
    tone: Tone = "error" if status.failed else "good" if status.ready else ""
    loading = status.model if status.loading else ""
    wrong = {"field": "model"} if status.failed else {}
    words = status.message
    if status.ready:
        known = KNOWN.get(status.model)
        reads = f", reads up to {known.context:,} tokens" if known else ""
        where = words.removeprefix(f"{status.model} is ready").rstrip(".").replace("cpu", "CPU")
        words = f"Ready{where}{reads}"
    return notice_value(words, tone) | wrong | {"loading": loading, "fraction": status.fraction}


def add_ablation(chosen: object, event: gr.EventData) -> list[Any]:
    """The chips with the steps of one chip's ablation, or why not."""
    try:
        base = read_text(event_field(event, "spec"))
        return [with_ablation(base, read_specs(chosen)), SILENT]
    except CkvError as error:
        return [gr.skip(), notice_value(str(error), "error")]
