"""The part of the Compare form for many samples: where they come from and how they are scored."""

from typing import Any

import gradio as gr

from ckv_core.experiment.harness import has_harness
from ckv_core.experiment.scores import METRICS
from ckv_core.experiment.tasks import TASKS
from ui.compare.controls import dropdown, segments, text
from ui.compare.form_values import FormValues
from ui.components.base import Notice, SampleMap, StudyFile

DEFAULTS = FormValues()
SOURCES = [("File or pasted", "file"), ("Built-in task", "task"), ("Stored texts", "runs")]
HARNESS = ("lm-evaluation-harness", "lm_eval")  # where its package is installed
DATA_HINT = (
    '{"context": "A long text …", "question": "Who …?", "answers": ["Ada", "Ada Lovelace"]}\n'
    '{"context": "Another text …", "question": "When …?", "answers": ["1843"]}'
)
# Column of this part -> the sources that it is for.
SAMPLE_AREAS = {
    "many_area": {"file", "task", "runs", "lm_eval"},
    "file_area": {"file"},
    "task_area": {"task"},
    "runs_area": {"runs"},
    "harness_area": {"lm_eval"},
    "count_area": {"task", "lm_eval"},
}


def build_samples(parts: dict[str, Any]) -> tuple[gr.HTML, list[gr.HTML]]:
    """Lay out the fields and columns of many samples.

    Returns:
        The map of columns, and the lines on what so many samples show and take.
    """
    sources = [*SOURCES, HARNESS] if has_harness() else SOURCES
    label = "Where the samples come from"
    parts["source"] = segments("source", label, sources, DEFAULTS.source)
    with gr.Column(elem_id="study-file-area") as parts["file_area"]:
        info = "one line a sample: JSON, or CSV with a first line of names; LongBench as published"
        parts["data"] = text("study-data", "Samples", info, (6, 6), placeholder=DATA_HINT)
        StudyFile(elem_id="study-file")
        parts["columns"] = text("study-columns", "Columns", "", elem_classes=["ckv-unseen"])
        columns = SampleMap(elem_id="study-map")
    with gr.Column(visible=False) as parts["task_area"]:
        info = "made on this machine; the same seed gives the same samples"
        tasks = [(f"{task.name}: {task.summary}", task.name) for task in TASKS.values()]
        parts["task"] = dropdown("study-task", "Task", info, tasks, DEFAULTS.task)
        with gr.Row():
            parts["length"] = _field("length", "Length", "tokens of a prompt: 1024, 2048")
            parts["sample_seed"] = _field("sample_seed", "Seed", "the random seed")
    with gr.Column(visible=False) as parts["runs_area"]:
        info = "their texts, questions and expected answers; choose them on the page Runs"
        parts["runs"] = text("study-runs", "Runs", info, placeholder="4f0c1a2b3c4d, 9e8d7c6b5a40")
    with gr.Column(visible=False) as parts["harness_area"]:
        info = "a task that generates its answer; its data set is downloaded first"
        hint = "longbench_hotpotqa"
        parts["lm_eval"] = text("study-lm-eval", "Task", info, placeholder=hint)
    with gr.Column(visible=False) as parts["count_area"]:
        info = "how many; of a built-in task at each length"
        parts["samples"] = _field("samples", "Samples", info)
    with gr.Row(elem_id="study-row"):
        info = "a name that exists resumes its run"
        parts["name"] = text("study-name", "Name", info, placeholder="needles", min_width=180)
        size = {"min_width": 150}
        metric, info = DEFAULTS.metric, "where a sample has none"
        parts["metric"] = dropdown("study-metric", "Metric", info, [*METRICS], metric, **size)
        info = "points of 100 that may be lost"
        parts["tolerance"] = _field("tolerance", "Tolerance", info)
    return columns, [Notice(elem_id="study-plan"), Notice(elem_id="study-cost")]


def _field(name: str, label: str, info: str) -> gr.Textbox:
    elem_id = f"field-{name.replace('_', '-')}"
    return text(elem_id, label, info, value=getattr(DEFAULTS, name), min_width=110)
