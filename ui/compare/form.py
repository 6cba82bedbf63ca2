"""The form of a run, of one text or many samples: every control with one line about it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ckv_core.experiment.harness import has_harness
from ckv_core.experiment.scores import METRICS
from ckv_core.experiment.tasks import TASKS
from ckv_core.records.run_request import DEVICES, DTYPES, MAX_FOLLOW_UPS, MAX_NEW_TOKENS, meaning
from ui.compare.form_values import CONTROL_NAMES, FormValues
from ui.compare.offers import chips_offer
from ui.components.base import (
    ContextBar,
    ExampleCard,
    MethodChips,
    ModelLine,
    Notice,
    RunNotice,
    SampleMap,
    SetupLink,
    Slide,
    StudyFile,
)
from ui.settings import Settings
from ui.shell.parts import dropdown, number, segments, text

WHAT = """<h2>What you will see</h2><ol>
<li><span>A model stores every token it has read in its <b>KV cache</b>. For long texts that memory
is the bottleneck.</span></li>
<li><span><b>Eviction</b> throws most of it away. Each method makes a different choice of what to
keep.</span></li>
<li><span>Look at <b>which methods still answer</b>, what they kept, and what that
saves.</span></li>
</ol>"""


def build_intro() -> None:
    """Lay both out; call inside a Blocks context."""
    with gr.Row(elem_id="intro", equal_height=False):
        gr.HTML(WHAT, elem_classes=["bare"])
        ExampleCard(elem_id="example")


DEFAULTS = FormValues()
SOURCES = [("File or pasted", "pasted"), ("Built-in task", "task"), ("Stored texts", "runs")]
HARNESS = [("lm-evaluation-harness", "lm_eval")] if has_harness() else []
DATA_HINT = (
    '{"context": "A long text …", "question": "Who …?", "answers": ["Ada", "Ada Lovelace"]}\n'
    '{"context": "Another text …", "question": "When …?", "answers": ["1843"]}'
)
# Column of this part -> the sources that it is for.
SAMPLE_AREAS = {
    "many_area": {"pasted", "task", "runs", "lm_eval"},
    "file_area": {"pasted"},
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
    label = "Where the samples come from"
    parts["source"] = segments("source", label, SOURCES + HARNESS, DEFAULTS.source)
    with gr.Column(elem_id="study-file-area") as parts["file_area"]:
        info = "JSON Lines, or CSV with named columns; files of RULER and LongBench fit as they are"
        parts["data"] = text("study-data", "Samples", info, (6, 6), placeholder=DATA_HINT)
        StudyFile(elem_id="study-file")
        parts["columns"] = text("study-columns", "Columns", "", elem_classes=["ckv-unseen"])
        columns = SampleMap(elem_id="study-map")
    with gr.Column(visible=False) as parts["task_area"]:
        info = "made on this machine; choose one or several"
        tasks = [(f"{task.name}: {task.summary}", task.name) for task in TASKS.values()]
        parts["task"] = dropdown(
            "study-task", "Tasks", info, tasks, list(DEFAULTS.task), multiselect=True
        )
        with gr.Row(elem_id="task-row"):
            parts["length"] = _field("length", "Length", "tokens per prompt: 1024, 2048")
            parts["sample_seed"] = _field(
                "sample_seed", "Seed", "the same seed gives the same samples"
            )
    with gr.Column(visible=False) as parts["runs_area"]:
        info = (
            "names of stored runs, whose texts, questions and answers are used; tick them on Runs"
        )
        parts["runs"] = text("study-runs", "Runs", info, placeholder="4f0c1a2b3c4d, 9e8d7c6b5a40")
    with gr.Column(visible=False) as parts["harness_area"]:
        info = "one whose answer is generated; its data set is downloaded first"
        hint = "longbench_hotpotqa"
        parts["lm_eval"] = text("study-lm-eval", "Task", info, placeholder=hint)
    with gr.Column(visible=False) as parts["count_area"]:
        info = "number for each task and length"
        parts["samples"] = _field("samples", "Samples", info)
    with gr.Row(elem_id="study-row"):
        info = "of the run"
        parts["name"] = text("study-name", "Name", info, placeholder="needles", min_width=180)
        size = {"min_width": 150}
        metric, info = DEFAULTS.metric, "if a sample has none"
        parts["metric"] = dropdown("study-metric", "Metric", info, [*METRICS], metric, **size)
        info = "points of 100"
        parts["tolerance"] = _field("tolerance", "Tolerance", info)
        parts["baseline"] = _field("baseline", "Baseline", "full, or a method")
    return columns, [Notice(elem_id="study-plan"), Notice(elem_id="study-cost")]


def _field(name: str, label: str, info: str) -> gr.Textbox:
    elem_id = f"field-{name.replace('_', '-')}"
    return text(elem_id, label, info, value=getattr(DEFAULTS, name), min_width=110)


EXAMPLE = "For example: "


def build_text(parts: dict[str, Any], examples: Sequence[str]) -> gr.HTML:
    """Lay out `context`, `question` and `answer`; returns the text's foot with these examples."""
    info = "what the model reads and the methods compress"
    hint = "Paste a long text here, or drop a file (.txt, .md, .json, .pdf, .docx, code)."
    with gr.Column(elem_id="text-box"):
        parts["context"] = text("context", "Text", info, (12, 12), placeholder=hint)
        bar = ContextBar(examples=list(examples), elem_id="context-bar")
    with gr.Row(elem_id="question-row"):
        hint, size = f"{EXAMPLE}What is the access code for pump house 4?", {"min_width": 260}
        parts["question"] = text(
            "question", "Question", "optional", (1, 4), placeholder=hint, scale=2, **size
        )
        parts["answer"] = text(
            "answer",
            "Expected answer",
            "optional",
            (1, 4),
            placeholder=f"{EXAMPLE}5829",
            scale=1,
            min_width=200,
        )
    return bar


MODES = [("One text", "text"), ("Many samples", "many")]
SCENARIO_CHOICES = [
    ("Regular", "regular"),
    ("Context-only", "context-only"),
]
ANALYSIS_CHOICES = [
    ("Bounds and oracles", "bounds"),
    ("Teacher-forced fidelity", "forced"),
]
BUDGET_RULER = {
    **{"field": "budget", "label": "Budget", "least": 1, "most": 50, "step": 1, "unit": "%"},
    "ticks": ["0", "10", "20", "30", "40", "50 %"],
    "hint": "One value or several: 10%, 20%, 40%. Also tokens (128) or memory (4MiB).",
}
ALPHA_RULER = {
    **{"field": "alpha", "label": "Alpha", "least": 0, "most": 1, "step": 0.05, "unit": ""},
    **{"ticks": [], "hint": ""},
}
ANALYSIS_INFO = (
    "Bounds and oracles: the paper's error bounds, and the best choice by true attention. They "
    "cost about one decoding step per method. Fidelity: every method reads the full cache's text, "
    "which takes about as long as generating it, and needs one budget and one alpha."
)
# Part of the form -> one text or the sources of samples that it is for.
AREAS = {
    "text_area": {"text"},
    **SAMPLE_AREAS,
    "text_settings": {"text"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The built controls by name, in the order of `CONTROL_NAMES`, and what stands beside them.

    Attributes:
        areas: of `AREAS`, which the mode and the source show or hide.
        slides: of budget and alpha.
        sample_map: columns of the pasted samples, and the first of them.
        plan: the lines on what so many samples can show, and on what they take.
    """

    controls: dict[str, Any]  # of many kinds
    areas: list[Any]
    context_bar: gr.HTML
    model_line: gr.HTML
    slides: list[gr.HTML]
    advanced_line: gr.HTML
    variants_line: gr.HTML
    sample_map: gr.HTML
    plan: list[gr.HTML]
    run: gr.Button
    new: gr.Button
    setup_link: gr.HTML
    notice: gr.HTML

    def inputs(self) -> list[Any]:
        return list(self.controls.values())

    def pick(self, *names: str) -> list[Any]:
        return [self.controls[name] for name in names]


def shown_areas(mode: object, source: object) -> list[dict[str, Any]]:
    """Updates of `AREAS`: those for one text or for this source of samples are shown."""
    origin = "text" if mode == "text" else source
    return [gr.update(visible=origin in origins) for origins in AREAS.values()]


def info_of(name: str) -> str:
    """What a field of the request means, as the sentence under its control."""
    sentence = meaning(name)
    return f"{sentence[0].upper()}{sentence[1:]}."


def build_form(settings: Settings, models: Sequence[str], examples: Sequence[str] = ()) -> Form:
    """Lay out the controls; call inside a Blocks context."""
    parts: dict[str, Any] = {}
    with gr.Row(elem_id="ask", equal_height=False):
        with gr.Column(elem_id="ask-text", min_width=0):
            with gr.Row(elem_id="ask-head"):
                parts["mode"] = segments("mode", "How many texts", MODES, DEFAULTS.mode)
                setup_link = SetupLink(elem_id="setup-link", min_width=60)
                new = gr.Button("New", elem_id="new", size="sm", scale=0, min_width=60)
            with gr.Column(elem_id="text-area") as parts["text_area"]:
                context_bar = build_text(parts, examples)
            with gr.Column(visible=False, elem_id="many-area") as parts["many_area"]:
                sample_map, plan = build_samples(parts)
        with gr.Column(elem_id="ask-how", min_width=0):
            with gr.Column(elem_id="model-area"):
                more: dict[str, Any] = {"allow_custom_value": True, "min_width": 0}
                parts["model"] = dropdown("model", "Model", "", models, settings.model, **more)
                model_line = ModelLine(elem_id="model-line")
            chips = list(DEFAULTS.variants)
            # As text: Gradio copies deep properties at every update.
            offer = json.dumps(chips_offer())
            parts["variants"] = MethodChips(chips, offer=offer, elem_id="variants")
            info = "how much of the KV cache to keep"
            budget_slide = _build_slide(parts, "Budget", info, BUDGET_RULER)
            info = "CriticalKV: share chosen by attention alone"
            alpha_slide = _build_slide(parts, "Alpha", info, ALPHA_RULER)
        with gr.Column(elem_id="ask-run", min_width=0):
            with gr.Column(elem_id="advanced-area"):
                with gr.Accordion("Advanced", open=False, elem_id="advanced"):
                    _build_advanced(parts, settings.device)
                advanced_line = Notice(elem_id="advanced-line")
            with gr.Row(elem_id="actions"):
                run = gr.Button("Run", variant="primary", elem_id="run")
                variants_line = Notice(elem_id="variants-line")
            notice = RunNotice(elem_id="notice")
    return Form(
        controls={name: parts[name] for name in CONTROL_NAMES},
        areas=[parts[name] for name in AREAS],
        context_bar=context_bar,
        model_line=model_line,
        slides=[budget_slide, alpha_slide],
        advanced_line=advanced_line,
        variants_line=variants_line,
        sample_map=sample_map,
        plan=plan,
        run=run,
        new=new,
        setup_link=setup_link,
        notice=notice,
    )


def _build_slide(parts: dict[str, Any], label: str, info: str, ruler: dict[str, Any]) -> gr.HTML:
    """A field of numbers with its slider, which is returned."""
    name = ruler["field"]
    with gr.Column(elem_id=f"{name}-area", elem_classes=["ckv-slide-area"]):
        slide = Slide({"text": getattr(DEFAULTS, name)}, ruler=ruler, elem_id=f"{name}-slide")
        parts[name] = text(name, label, info, value=getattr(DEFAULTS, name), min_width=0)
    return slide


def _build_advanced(parts: dict[str, Any], device: str) -> None:
    """Controls that a first run does not need."""
    info = (
        "Regular: the question is known before the cache is compressed. Context-only: it comes "
        "after, so one compressed cache serves any question."
    )
    choices, chosen = SCENARIO_CHOICES, DEFAULTS.scenario
    parts["scenario"] = segments("scenario", "Scenario", choices, chosen, info=info)
    info = f"What each method writes at most, 1 to {MAX_NEW_TOKENS:,}."
    tokens = number("max-new-tokens", "New tokens", info, DEFAULTS.max_new_tokens)
    parts["max_new_tokens"] = tokens
    with gr.Column() as parts["text_settings"]:
        info = f"One per line. {info_of('protect')}"
        parts["protect"] = text("protect", "Protected text", info, (1, 6))
        info = "The output continues these words. Text and question are then joined as in kvpress."
        parts["answer_prefix"] = text("answer-prefix", "Answer begins with", info)
        info = "Extra outputs of each method, drawn at random: COUNT:temperature=T,top_p=P,seed=N."
        parts["repeats"] = text(
            "repeats", "Sampled texts", info, placeholder="8:temperature=0.7,top_p=0.9,seed=0"
        )
        info = f"One per line, up to {MAX_FOLLOW_UPS}; the same caches answer them. Context-only."
        parts["follow_ups"] = text("follow-up-questions", "Follow-up questions", info, (1, 8))
        with gr.Row():
            info = "auto: float32 on CPU, bfloat16 on CUDA, float16 on older GPUs."
            parts["dtype"] = dropdown("dtype", "dtype", info, DTYPES, "auto", min_width=180)
            info = "auto: CUDA if there is one."
            parts["device"] = dropdown("device", "Device", info, DEVICES, device, min_width=120)
        for name, label in (("ignore_eos", "Ignore EOS"), ("time", "Time each method")):
            own_id = name.replace("_", "-")
            parts[name] = gr.Checkbox(label=label, info=info_of(name), elem_id=own_id)
        parts["reference"] = gr.Checkbox(
            value=True,
            label="Compare with the full cache",
            info=f"{info_of('reference')} Diagnostics need it.",
            elem_id="reference",
        )
        parts["analysis"] = gr.CheckboxGroup(
            ANALYSIS_CHOICES,
            value=list(DEFAULTS.analysis),
            label="Diagnostics",
            info=ANALYSIS_INFO,
            elem_id="analysis",
        )
