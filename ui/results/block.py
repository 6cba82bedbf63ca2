"""The results of a run, of one sample or many: one block that Compare and the Run page share."""

from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.errors import CkvError
from storage.models import SAMPLES
from ui.components.base import (
    DataTable,
    FollowUpAnswers,
    Generations,
    KeptTokens,
    Notice,
    RunCharts,
    RunLinks,
    Scripted,
    SectionLinks,
    StatusBar,
    VerdictStrip,
    section_html,
)
from ui.services.services import Services
from ui.shell.parts import AT_ONCE
from ui.tables.sweep import savings_table

RECEIPT_TEXT = (
    "### Results\n"
    "Memory used and output quality of each method, beside the [[full cache]]. The ? at a column "
    "says what it means."
)
GENERATIONS_TEXT = (
    "### Generations\n"
    "All variants decode greedily from one prompt. The first token that differs from the full "
    "cache's is underlined; later differences do not mean worse quality."
)
KEPT_TEXT = (
    "### Kept tokens\n"
    "Each row is a layer, each column a place in the prompt; brighter means more "
    "[[KV head|KV heads]] keep it. "
    "The text is shaded the same way: choose a token or a span to see which variants keep it."
)
PERTURBATION_TEXT = (
    "### Perturbation at the first decoding step\n"
    "How far eviction moves the model's state before a token is chosen; lower is closer to the "
    "full cache. Head outputs are [[isolated]], hidden states [[cascaded]]; ratios are to the "
    "variant's own [[base]]. A single head and the whole model may disagree. Ignore differences "
    "below the [[rounding floor]]."
)
CURVES_TEXT = (
    "### Quality against the budget\n"
    "Each line or row of marks is a method with one [[alpha]]. The dotted line is the "
    "[[full cache]]. Pink lines with open markers are [[oracle|oracles]]: they see the true "
    "attention, which no method does."
)
SAVINGS_TEXT = (
    "### Budget savings\n"
    "How many [[entry|entries]] a method needs to be as close to the full cache as another one."
)
ALPHA_TEXT = (
    "### Which alpha\n"
    "The alpha, of those tried, that moves the attention outputs least; it need not be the one "
    "that answers best. It is chosen afterwards, so the gain is an upper limit for any rule that "
    "picks one of them per head."
)
POINTS_TEXT = "### All points\nA column's name sorts by it."
DECISION_TEXT = "### The answer, method by method\nBest first."
CHARTS_TEXT = (
    "### Score against budget, bytes and perturbation\n"
    "Bars are 95 % intervals. Cells of a needle map lead to their samples."
)
SCORES_TEXT = (
    "### Every method and budget\nA score leads to its samples. A column with a minus compares."
)
SCORE_SAVINGS_TEXT = (
    "### Budget saved at an equal score\n"
    "What a method with CriticalKV needs to answer as well as the same without."
)
TASKS_TEXT = "### Task by task\nWith and without CriticalKV. A score leads to its samples."
SAMPLES_TEXT = (
    "### Samples\n"
    "Samples where methods disagree most come first. A sample opens in Compare with the same "
    "methods; that run shows which of them keep the words of the answer."
)

RESULTS = ["ckv-results"]  # around whose sections SectionLinks lead
# Of an area that is built with the page, though not seen: what comes for a component while Gradio
# builds it may be lost. (A column of Gradio's shows what is to be "hidden".)
UNSEEN = "ckv-unseen"


@dataclass(frozen=True, slots=True)
class Area:
    """The results of one kind of run: its heading, and (id, component, text) by name."""

    elem_id: str
    heading: str
    parts: dict[str, tuple[str, Scripted, str]]


TOP: dict[str, tuple[str, Scripted, str]] = {
    "verdict": ("verdict", VerdictStrip, ""),
    "status": ("status", StatusBar, ""),
    "links": ("run-links", RunLinks, ""),
}
AREAS = {
    "compare": Area(
        "results",
        "Results",
        {
            "summary": ("summary", DataTable, RECEIPT_TEXT),
            "generations": ("generations", Generations, GENERATIONS_TEXT),
            "follow_ups": ("follow-ups", FollowUpAnswers, ""),
            "kept": ("kept", KeptTokens, KEPT_TEXT),
            "charts": ("charts", RunCharts, PERTURBATION_TEXT),
            "diagnostics": ("diagnostics", RunCharts, ""),
        },
    ),
    "sweep": Area(
        "sweep-results",
        "Results at several budgets",
        {
            "curves": ("sweep-curves", RunCharts, CURVES_TEXT),
            "savings": ("sweep-savings", DataTable, ""),
            "alphas": ("sweep-alphas", DataTable, ALPHA_TEXT),
            "alpha_charts": ("sweep-alpha-charts", RunCharts, ""),
            "points": ("sweep-points", DataTable, POINTS_TEXT),
        },
    ),
    SAMPLES: Area(
        "study-results",
        "Results of many samples",
        {
            "decision": ("study-decision", DataTable, DECISION_TEXT),
            "score_charts": ("study-charts", RunCharts, CHARTS_TEXT),
            "scores": ("study-scores", DataTable, SCORES_TEXT),
            "score_savings": ("study-savings", DataTable, SCORE_SAVINGS_TEXT),
            "tasks": ("study-tasks", DataTable, TASKS_TEXT),
            "cell": ("study-cell", Notice, ""),
            "samples": ("study-samples", DataTable, SAMPLES_TEXT),
        },
    ),
}


# All that a feed writes, in the order in which it is built.
OUTPUTS = (*TOP, *AREAS["compare"].parts, "curves", "reference")
OUTPUTS += (*(name for name in AREAS["sweep"].parts if name != "curves"), *AREAS[SAMPLES].parts)


def shown_areas(kind: str) -> list[Any]:
    """Updates of the areas: that of this kind of run is seen."""
    return [
        gr.update(elem_classes=RESULTS if name == kind else [*RESULTS, UNSEEN]) for name in AREAS
    ]


class ResultsBlock:
    """The components, empty and not seen; made inside a Blocks context.

    Attributes:
        areas: one of each kind of run; the verdict, the status bar and the links stand above.
        outputs: everything that a feed writes, by name.
    """

    def __init__(self) -> None:
        self.outputs: dict[str, Component] = _built(TOP)
        self.areas: list[gr.Column] = []
        for kind, area in AREAS.items():
            classes = [*RESULTS, UNSEEN]
            with gr.Column(elem_id=area.elem_id, elem_classes=classes) as column:
                # The sections' headings come one level below it.
                gr.HTML(f"<h2>{area.heading}</h2>", elem_classes=["bare", "ckv-offscreen"])
                SectionLinks(elem_classes=["ckv-sections-bar"])
                parts = dict(area.parts)
                if kind == "sweep":
                    self.outputs |= _built({"curves": parts.pop("curves")})
                    head = section_html(SAVINGS_TEXT)
                    gr.HTML(head, elem_id="sweep-savings-head", elem_classes=["bare"])
                    self.outputs["reference"] = gr.Dropdown(
                        [], label="Match the quality of", visible=False, elem_id="sweep-reference"
                    )
                self.outputs |= _built(parts)
            self.areas.append(column)

    def wire(self, services: Services, slug: Component) -> None:
        """The table of savings follows the line whose quality is matched."""

        def matched(name: object, reference: object) -> Any:
            try:
                return savings_table(services.snapshot(str(name)).result, reference)
            except CkvError:
                return gr.skip()

        matching: Any = self.outputs["reference"]
        matching.input(matched, [slug, matching], [self.outputs["savings"]], **AT_ONCE)


def _built(parts: dict[str, tuple[str, Scripted, str]]) -> dict[str, Component]:
    return {
        name: make(elem_id=elem_id, section=text) for name, (elem_id, make, text) in parts.items()
    }
