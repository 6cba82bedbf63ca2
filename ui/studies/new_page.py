"""The Studies page: the form of a new study, with its cost shown before it runs."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from ckv_core.errors import CkvError
from ckv_core.studies.runner import Cost
from ui.components.data_table import DataTable
from ui.components.notice import Notice
from ui.results.live import duration
from ui.services.services import Services
from ui.settings import Settings
from ui.shell.drafts import Draft
from ui.shell.parts import AT_ONCE, PRIVATE, SHARED, SILENT, build_confirm, refused, said
from ui.studies.form import AREAS, build_study_form, shown_areas
from ui.studies.forms import StudyForm, preview, read_run_slugs, sample_lines

INTRO = (
    "## New study\n"
    "Many samples, methods and budgets: which method keeps the full cache's score at which "
    "smallest budget, with intervals. A study continues when this page is closed and after a "
    "restart; the page Runs lists it."
)
# Where a study was started, its own page shows it.
OPEN_STUDY = "(slug) => { if (slug) location.href = `/run?id=${encodeURIComponent(slug)}`; }"


class StudiesPage:
    def __init__(self, services: Services, settings: Settings, *, models: Sequence[str]) -> None:
        self._services = services
        gr.Markdown(INTRO, elem_classes=["section"])
        self.slug = gr.Textbox(visible="hidden", elem_id="slug")
        self.agreed = gr.Textbox(visible="hidden", elem_id="offered")
        self.notice = Notice(elem_id="studies-notice")
        with gr.Column(elem_id="new-study"):
            form = build_study_form(models=models, model=settings.model)
            self.areas = [form.pop(name) for name in AREAS]
            self.form = form
            self.told = Notice(elem_id="study-line")
            self.preview = DataTable(elem_id="study-preview")
            with gr.Row(elem_id="actions"):
                self.run = gr.Button("Run", variant="primary", elem_id="run", scale=0)
                new = gr.Button("New", elem_id="new", min_width=80, scale=0)
                self.answer = Notice(elem_id="notice")
            self.confirm, self.question, self.yes, self.no = build_confirm("Run it", "Not now")
        self.draft = Draft("/studies", list(form.values()), new)

    def wire(self, page: gr.Blocks) -> None:
        inputs = list(self.form.values())
        filled = [self.notice, self.form["data"]]
        self.draft.restore_after(page.load(self.open, None, filled, **AT_ONCE))
        source = self.form["source"]
        source.input(shown_areas, [source], self.areas, **AT_ONCE)
        texts = ("data", "columns", "budgets", "length", "samples", "name")
        events = [self.form[name].blur for name in (*texts, "lm_eval")]
        events += [self.form[name].input for name in ("source", "methods", "scenario", "metric")]
        told = [self.told, self.preview]
        gr.on(events, self.describe, inputs, told, trigger_mode="always_last", **SHARED)
        restored = self.draft.restored.change
        restored(shown_areas, [source], self.areas, **AT_ONCE)
        restored(self.describe, inputs, told, **SHARED)
        asked = [self.slug, self.answer, self.confirm, self.question, self.agreed]
        for started in (
            self.run.click(self.ask, inputs, asked, **SHARED),
            self.yes.click(self.start, [*inputs, self.agreed], asked, **SHARED),
        ):
            started.then(None, [self.slug], None, js=OPEN_STUDY, **PRIVATE)
        asking = [self.confirm, self.answer]
        self.no.click(lambda: [gr.update(visible=False), SILENT], None, asking, **AT_ONCE)

    # --- handlers -----------------------------------------------------------------------

    def open(self, request: gr.Request) -> list[Any]:
        """/studies?runs=SLUG,SLUG fills the samples with runs' texts."""
        told: dict[str, Any] = SILENT
        data: Any = gr.skip()
        try:
            if slugs := read_run_slugs(request.query_params.get("runs", "") if request else ""):
                data = sample_lines(self._services.studies.samples_of_runs(slugs))
                told = said(f"Filled in as samples: the texts of {len(slugs)} stored runs.")
        except CkvError as error:
            told = said(str(error), "error")
        return [told, data]

    def describe(self, *values: object) -> list[Any]:
        """How the samples are read and what would run, or what is wrong."""
        try:
            form = StudyForm.from_controls(values)
            told, table = preview(form)
        except CkvError as error:
            return [refused(error, self.form), None]
        return [said(told or self._points_of(form)), table]

    def ask(self, *values: object) -> list[Any]:
        """What it costs, before it starts, or why it cannot; an exported study is stored."""
        try:
            form, studies = StudyForm.from_controls(values), self._services.studies
            if form.is_exported:
                return [studies.add(form.data_text), SILENT, gr.update(visible=False), SILENT, ""]
            study = form.study()
            cost = studies.cost(study, form.data_text)
        except CkvError as error:
            return ["", refused(error, self.form), gr.update(visible=False), SILENT, ""]
        question = f"{cost_sentence(cost)} Run it?"
        return ["", SILENT, gr.update(visible=True), said(question, "warn"), str(hash(form))]

    def start(self, *values: object) -> list[Any]:
        """Start it; a form that changed since is asked about anew."""
        *controls, agreed = values
        try:
            form = StudyForm.from_controls(controls)
            if agreed != str(hash(form)):
                return self.ask(*controls)
            study, studies = form.study(), self._services.studies
            slug = studies.start(study, studies.samples_of(study, form.data_text))
        except CkvError as error:
            return ["", refused(error, self.form), gr.update(visible=False), SILENT, ""]
        return [slug, SILENT, gr.update(visible=False), SILENT, ""]

    def _points_of(self, form: StudyForm) -> str:
        if not form.name.strip() or (form.source == "file" and not form.data.strip()):
            return ""
        count = len(form.study().points())
        return f"{count} points a sample: the full cache and each method at each budget."


def cost_sentence(cost: Cost) -> str:
    """What a study takes, before it starts."""
    return (
        f"{cost.samples:,} samples x {cost.points // max(1, cost.samples)} points, about "
        f"{cost.tokens:,} prompt tokens (the longest prompt {cost.longest:,}): about "
        f"{duration(cost.seconds)}, estimated from the default model's times on two CPU cores."
    )
