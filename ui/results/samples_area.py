"""The results of a run of many samples: the decision, scores, disagreements, and all figures."""

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

import gradio as gr
from gradio.components import Component

from ckv_core.experiment.behaviour import behaviour_table
from ckv_core.experiment.negatives import Negative, negatives_table
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.runs import sample_request
from ckv_core.experiment.sentences import counted
from ui.charts.study import charts_value
from ui.components.base import DataTable, Fold, Notice, RunCharts, fold_column
from ui.results.next_steps import opened
from ui.services.services import Services
from ui.shell.parts import SILENT, notice_value
from ui.tables.decision import bounds_table, decision_table, scores_table
from ui.tables.points import look_values
from ui.tables.sample_list import Cell, samples_table
from ui.tables.samples import figures_table, savings_table, tasks_table

SCORES_TEXT = "### Scores\nA score leads to its samples."
SAMPLES_TEXT = (
    "### Samples where methods disagree\n"
    "A sample opens as a result of one text, with the same methods and budget."
)
NEEDLES_TEXT = "### Needle map\nA cell leads to its samples."
BOUNDS_TEXT = "### Bounds\nHow sure the decision is, at every budget."
FIGURES_TEXT = "### Every method and budget\nA column with a minus sign is a difference."
SAVINGS_TEXT = (
    "### Budget saved at an equal score\n"
    "The budget at which a method with CriticalKV scores as well as without it."
)
TASKS_TEXT = "### Task by task\nWith and without CriticalKV. A score leads to its samples."
NEGATIVES_TEXT = "### Lost answers\nSamples that the full cache answers and a method does not."
BEHAVIOUR_TEXT = "### Length and repetition\nLength and repetition of the outputs, task by task."
CHARTS_TEXT = "### Score against budget, bytes and perturbation\nBars are 95 % intervals."
MORE_LINE = {"title": "All figures and charts", "hint": "bounds, every metric, tasks and CSV"}

# Name, id, component and text of all that a feed writes; the last ones are folded.
_FIRST: tuple[tuple[str, str, Callable[..., Component], str], ...] = (
    ("scores", "study-scores", DataTable, SCORES_TEXT),
    ("cell", "study-cell", Notice, ""),
    ("samples", "study-samples", DataTable, SAMPLES_TEXT),
    ("needles", "study-needles", RunCharts, NEEDLES_TEXT),
)
_FOLDED: tuple[tuple[str, str, Callable[..., Component], str], ...] = (
    ("bounds", "study-bounds", DataTable, BOUNDS_TEXT),
    ("figures", "study-figures", DataTable, FIGURES_TEXT),
    ("score_savings", "study-savings", DataTable, SAVINGS_TEXT),
    ("tasks", "study-tasks", DataTable, TASKS_TEXT),
    ("negatives", "study-negatives", DataTable, NEGATIVES_TEXT),
    ("behaviour", "study-behaviour", DataTable, BEHAVIOUR_TEXT),
    ("score_charts", "study-charts", RunCharts, CHARTS_TEXT),
)
# What a report calls them, in which nothing leads to pages of the app; those without a name do.
REPORT_TEXTS = {
    "bound": "### How much may be lost",
    "decision": "### The answer, method by method",
    **{name: text for name, _, _, text in (*_FIRST, *_FOLDED)},
    "scores": "### Scores",
    "samples": "### Samples where methods disagree",
    "needles": "### Needle map",
    "tasks": "### Task by task\nWith and without CriticalKV.",
}
OUTPUTS = (
    *("bound", "decision", "next"),
    *(name for name, *_ in _FIRST),
    "more",
    *(name for name, *_ in _FOLDED),
)


def build_samples() -> dict[str, Component]:
    """The components, empty, by name; call inside a Blocks context."""
    outputs: dict[str, Component] = {}
    with gr.Row(elem_id="study-answer", equal_height=True):
        with gr.Column(scale=13, min_width=320):
            outputs["bound"] = RunCharts(elem_id="study-bound")
        with gr.Column(scale=12, min_width=320, elem_id="study-why"):
            outputs["decision"] = DataTable(elem_id="study-decision")
            outputs["next"] = Notice(elem_id="study-next")
    outputs |= {name: make(elem_id=at, section=text) for name, at, make, text in _FIRST}
    with fold_column():
        outputs["more"] = Fold(elem_id="study-more")
        outputs |= {name: make(elem_id=at, section=text) for name, at, make, text in _FOLDED}
    return outputs


def reading_values(
    reading: Reading, cell: Cell | None, *, may_change: bool = False
) -> dict[str, Any]:
    """The area of many samples; the samples may be those of one cell."""
    only = SILENT
    if cell is not None:
        words = f"Only the samples of {cell.words(reading)}. "
        only = notice_value(words, "", [("Where methods disagree", f"/run?id={reading.slug}")])
    needles = charts_value(reading, "needles")
    figures, looks = figures_table(reading), look_values(reading.points)
    negatives = negatives_table(reading, partial(_sample_address, reading))
    figures["note"] = f"{figures['note']} {reading.l1_finding}".strip()
    return {
        "verdict": _verdict(reading),
        "bound": charts_value(reading, "bound"),
        "decision": decision_table(reading),
        "next": _next_steps(reading, may_change=may_change),
        "scores": scores_table(reading),
        "cell": only,
        "samples": samples_table(reading, cell),
        "needles": needles if needles["charts"] else None,  # the samples have depths
        "more": MORE_LINE,
        "bounds": bounds_table(reading),
        "figures": figures,
        "score_savings": savings_table(reading),
        "tasks": tasks_table(reading),
        "negatives": negatives.value(looks) | {"opens": True},
        "behaviour": behaviour_table(reading).value(looks),
        "score_charts": charts_value(reading, "budget", "samples"),
    }


def _sample_address(reading: Reading, lost: Negative) -> str:
    values = {"study": reading.slug, "sample": lost.sample.id, "budget": lost.point.budget or ""}
    return f"/?{urlencode(values)}"


def open_sample(services: Services, study: object, sample: str, budget: str) -> str:
    """The slug of a run of one sample with all methods; a client may send anything."""
    reading = services.studies.reading(study)
    samples = services.studies.samples(reading.slug)
    return opened(services, sample_request(reading.study, samples, sample, budget))


def _verdict(reading: Reading) -> dict[str, Any]:
    """The answer; what the page has elsewhere is left out."""
    value = reading.verdict.to_json()
    elsewhere = {reading.l1_finding, reading.decision.size}
    return value | {
        "groups": [],
        # One paragraph: the page shows the first finding at once.
        "findings": [" ".join(text for text in value["findings"] if text not in elsewhere)],
        "cautions": [text for text in value["cautions"] if text not in elsewhere],
    }


def _next_steps(reading: Reading, *, may_change: bool) -> dict[str, Any]:
    """What this many samples can show, and the form that adds others."""
    decision, address = reading.decision, f"/?study={reading.slug}"
    if not may_change:
        return notice_value(decision.size)
    more = decision.more or len(reading.samples)
    add = (f"Add {counted(more, 'sample')}", f"{address}&add={more}")
    steps = [("Change tolerance", f"{address}&add=0")]
    return notice_value(decision.size, "", steps if reading.study.read_once else [add, *steps])
