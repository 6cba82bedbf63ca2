"""The form of a new study: its samples, methods and budgets, each control with one line."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from ckv_core.request.compare_request import MAX_NEW_TOKENS
from ckv_core.studies.harness import has_harness
from ckv_core.studies.scores import METRICS
from ckv_core.studies.tasks import TASKS
from ui.compare.offers import picker_offer
from ui.compare.prompt_controls import dropdown, model_control, number, scenario_control, text
from ui.components.text_files import StudyFile
from ui.components.variant_picker import VariantPicker
from ui.studies.forms import DEFAULT_METHODS, STUDY_CONTROLS, StudyForm

DEFAULTS = StudyForm()
SOURCES = [("Own file", "file"), ("Built-in task", "task")]
HARNESS = ("lm-evaluation-harness", "lm_eval")  # where its package is installed
DATA_INFO = (
    "One JSON object a line with context, question, answers (a list) and, if you like, id and "
    "metric; or CSV with these columns; or an exported study. How it is read is shown below before "
    "anything runs."
)

# Area -> the sources that it is for.
AREAS = {
    "file_area": {"file"},
    "task_area": {"task"},
    "harness_area": {"lm_eval"},
    "samples_area": {"task", "lm_eval"},
}


def build_study_form(*, models: Sequence[str], model: str) -> dict[str, Any]:
    """Lay out the controls, by name in the order of `STUDY_CONTROLS`; call inside Blocks.

    Beside them `AREAS`, which the source shows or hides.
    """
    parts: dict[str, Any] = {}
    with gr.Row(equal_height=False):
        with gr.Column(scale=5, min_width=320):
            _build_data(parts)
        with gr.Column(scale=4, min_width=320):
            _build_methods(parts, models, model)
    areas = {name: parts[name] for name in AREAS}
    return {name: parts[name] for name in STUDY_CONTROLS} | areas


def shown_areas(source: str) -> list[dict[str, Any]]:
    return [gr.update(visible=source in sources) for sources in AREAS.values()]


def _build_data(parts: dict[str, Any]) -> None:
    told = "Reusing a name resumes that study."
    parts["name"] = text("study-name", "Name", told, placeholder="needles")
    sources = [*SOURCES, HARNESS] if has_harness() else SOURCES
    parts["source"] = gr.Radio(
        sources, value=DEFAULTS.source, label="Samples from", elem_id="study-source"
    )
    with gr.Column(elem_id="study-file-area") as parts["file_area"]:
        parts["data"] = text("study-data", "Samples", DATA_INFO, (8, 8))
        StudyFile(elem_id="study-file")
        told = "Only where names differ: context=passage, answers=label."
        parts["columns"] = text("study-columns", "Columns", told)
    with gr.Column(visible=False, elem_id="study-task-area") as parts["task_area"]:
        told = "Made on this machine from its definition; the same seed gives the same samples."
        tasks = [(f"{task.name}: {task.summary}", task.name) for task in TASKS.values()]
        parts["task"] = dropdown("study-task", "Task", told, tasks, DEFAULTS.task)
        with gr.Row():
            parts["length"] = _text("length", "Length", "Tokens of a prompt: 1024, 2048.")
            parts["seed"] = _number("seed", "Seed", "The random seed.")
    with gr.Column(visible=False) as parts["harness_area"]:
        told = "One that writes its answer. Its data set is fetched; the first task takes 20 s."
        parts["lm_eval"] = text("study-lm-eval", "Task", told, placeholder="longbench_hotpotqa")
    with gr.Column(visible=False) as parts["samples_area"]:
        told = "How many; of a built-in task at each length."
        parts["samples"] = _number("samples", "Samples", told)
    parts["scenario"] = scenario_control(DEFAULTS.scenario)


def _build_methods(parts: dict[str, Any], models: Sequence[str], model: str) -> None:
    parts["model"] = model_control(models, model)
    told = "Each at every budget, beside the full cache. One prefill a sample serves all."
    offer = picker_offer("Methods", told, DEFAULT_METHODS, with_full=False)
    parts["methods"] = VariantPicker(list(DEFAULTS.methods), offer=offer, elem_id="methods")
    with gr.Row():
        parts["budgets"] = _text("budgets", "Budgets", "All in percent, or all in tokens.")
        told = f"Generated per point, 1 to {MAX_NEW_TOKENS}."
        parts["max_new_tokens"] = _number("max_new_tokens", "New tokens", told)
    with gr.Row():
        told, metrics = "Used unless a sample names its own.", list(METRICS)
        parts["metric"] = dropdown(
            "study-metric", "Metric", told, metrics, DEFAULTS.metric, min_width=180
        )
        told = "Accepted accuracy drop, in percentage points."
        parts["tolerance"] = _number("tolerance", "Tolerance", told)


def _text(name: str, label: str, info: str) -> gr.Textbox:
    value = getattr(DEFAULTS, name)
    return text(f"study-{name}", label, info, value=value, min_width=120)


def _number(name: str, label: str, info: str) -> gr.Number:
    value = float(getattr(DEFAULTS, name))
    return number(f"study-{name.replace('_', '-')}", label, info, value, min_width=110)
