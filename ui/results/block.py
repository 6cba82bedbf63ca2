"""The results of a run, of one sample or many: one block that Compare and the Run page share."""

from collections.abc import Callable
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.errors import CkvError
from ckv_core.experiment.sweep_tables import sweep_savings
from storage.models import SAMPLES
from ui.components.base import (
    DataTable,
    FollowUpAnswers,
    Generations,
    KeptTokens,
    RunCharts,
    RunLinks,
    SectionLinks,
    StatusBar,
    VerdictStrip,
    section_html,
)
from ui.results import samples_area
from ui.services.services import Services
from ui.shell.parts import AT_ONCE
from ui.tables.points import sweep_value

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
    "Each map shows all layers (top to bottom) and the whole prompt (left to right); more colour "
    "means more [[KV head|KV heads]] keep it. The line marks the expected answer."
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

RESULTS = ["ckv-results"]  # around whose sections SectionLinks lead
# Of an area that is built with the page, though not seen: what comes for a component while Gradio
# builds it may be lost. (A column of Gradio's shows what is to be "hidden".)
UNSEEN = "ckv-unseen"


# By kind of run: id and heading of the area with its results.
AREAS = {
    "compare": ("results", "Results"),
    "sweep": ("sweep-results", "Results at several budgets"),
    SAMPLES: ("study-results", "Results of many samples"),
}


def reference(*, elem_id: str, section: str) -> gr.Dropdown:
    """The line whose quality others are to match, below the heading of the savings."""
    head = section_html(section)
    gr.HTML(head, elem_id="sweep-savings-head", elem_classes=["bare"])
    return gr.Dropdown([], label="Match the quality of", visible=False, elem_id=elem_id)


# Area (none for what stands above all), name, id, component and text of all that a feed writes.
PARTS: tuple[tuple[str, str, str, Callable[..., Component], str], ...] = (
    ("", "verdict", "verdict", VerdictStrip, ""),
    ("", "status", "status", StatusBar, ""),
    ("", "links", "run-links", RunLinks, ""),
    ("compare", "summary", "summary", DataTable, RECEIPT_TEXT),
    ("compare", "generations", "generations", Generations, GENERATIONS_TEXT),
    ("compare", "follow_ups", "follow-ups", FollowUpAnswers, ""),
    ("compare", "kept", "kept", KeptTokens, KEPT_TEXT),
    ("compare", "charts", "charts", RunCharts, PERTURBATION_TEXT),
    ("compare", "diagnostics", "diagnostics", RunCharts, ""),
    ("sweep", "curves", "sweep-curves", RunCharts, CURVES_TEXT),
    ("sweep", "reference", "sweep-reference", reference, SAVINGS_TEXT),
    ("sweep", "savings", "sweep-savings", DataTable, ""),
    ("sweep", "alphas", "sweep-alphas", DataTable, ALPHA_TEXT),
    ("sweep", "alpha_charts", "sweep-alpha-charts", RunCharts, ""),
    ("sweep", "points", "sweep-points", DataTable, POINTS_TEXT),
)
OUTPUTS = (*(name for _, name, *_ in PARTS), *samples_area.OUTPUTS)


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
        self.outputs = _built("")
        self.areas: list[gr.Column] = []
        for kind, (elem_id, heading) in AREAS.items():
            with gr.Column(elem_id=elem_id, elem_classes=[*RESULTS, UNSEEN]) as column:
                # The sections' headings come one level below it.
                gr.HTML(f"<h2>{heading}</h2>", elem_classes=["bare", "ckv-offscreen"])
                SectionLinks(elem_classes=["ckv-sections-bar"])
                self.outputs |= samples_area.build_samples() if kind == SAMPLES else _built(kind)
            self.areas.append(column)

    def wire(self, services: Services, slug: Component) -> None:
        """The table of savings follows the line whose quality is matched."""

        def matched(name: object, reference: object) -> Any:
            try:
                result = services.snapshot(str(name)).result
                return sweep_value(result, sweep_savings(result, reference))
            except CkvError:
                return gr.skip()

        matching: Any = self.outputs["reference"]
        matching.input(matched, [slug, matching], [self.outputs["savings"]], **AT_ONCE)


def _built(kind: str) -> dict[str, Component]:
    return {
        name: make(elem_id=elem_id, section=text)
        for area, name, elem_id, make, text in PARTS
        if area == kind
    }
