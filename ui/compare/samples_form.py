"""The part of the Compare form for many samples: where they come from and how they are scored."""

from typing import Any

import gradio as gr

from ckv_core.experiment.harness import has_harness
from ckv_core.experiment.scores import METRICS
from ckv_core.experiment.tasks import TASKS
from ckv_core.records.run_request import meaning
from ui.compare.controls import dropdown, text
from ui.compare.form_values import FormValues
from ui.components.base import DataTable, StudyFile

DEFAULTS = FormValues()
SOURCES = [("File of samples", "file"), ("Built-in task", "task")]
HARNESS = ("lm-evaluation-harness", "lm_eval")  # where its package is installed
DATA_INFO = (
    "One JSON object per line with context, question, answers (a list) and, if you like, id and "
    "metric; or CSV with these columns; or an exported run. The first samples appear below before "
    "anything runs."
)
# Column of this part -> the sources that it is for.
SAMPLE_AREAS = {
    "many_area": {"file", "task", "lm_eval"},
    "file_area": {"file"},
    "task_area": {"task"},
    "harness_area": {"lm_eval"},
    "count_area": {"task", "lm_eval"},
}


def build_samples(parts: dict[str, Any]) -> gr.HTML:
    """Lay out the fields and columns of many samples; returns the table of the first ones."""
    sources = [*SOURCES, HARNESS] if has_harness() else SOURCES
    parts["source"] = gr.Radio(
        sources, value=DEFAULTS.source, label="Where the samples come from", elem_id="source"
    )
    with gr.Column() as parts["file_area"]:
        parts["data"] = text("study-data", "Samples", DATA_INFO, (8, 8))
        StudyFile(elem_id="study-file")
        info = "Only where names differ: context=passage, answers=label."
        parts["columns"] = text("study-columns", "Columns", info)
    with gr.Column(visible=False) as parts["task_area"]:
        info = "Generated on this machine; the same seed gives the same samples."
        tasks = [(f"{task.name}: {task.summary}", task.name) for task in TASKS.values()]
        parts["task"] = dropdown("study-task", "Task", info, tasks, DEFAULTS.task)
        with gr.Row():
            parts["length"] = _field("length", "Length", "Tokens of a prompt: 1024, 2048.")
            parts["sample_seed"] = _field("sample_seed", "Seed", "The random seed.")
    with gr.Column(visible=False) as parts["harness_area"]:
        info = "A task that generates its answer. Its data set is downloaded first."
        hint = "longbench_hotpotqa"
        parts["lm_eval"] = text("study-lm-eval", "Task", info, placeholder=hint)
    with gr.Column(visible=False) as parts["count_area"]:
        info = "How many; of a built-in task at each length."
        parts["samples"] = _field("samples", "Samples", info)
    info = _sentence("name")
    parts["name"] = text("study-name", "Name", info, placeholder="needles")
    with gr.Row():
        size = {"min_width": 180}
        metric = DEFAULTS.metric
        info = _sentence("metric")
        parts["metric"] = dropdown("study-metric", "Metric", info, [*METRICS], metric, **size)
        parts["tolerance"] = _field("tolerance", "Tolerance", _sentence("tolerance"))
    return DataTable(elem_id="study-preview")


def _sentence(name: str) -> str:
    words = meaning(name)
    return f"{words[0].upper()}{words[1:]}."


def _field(name: str, label: str, info: str) -> gr.Textbox:
    elem_id = f"field-{name.replace('_', '-')}"
    return text(elem_id, label, info, value=getattr(DEFAULTS, name), min_width=110)
