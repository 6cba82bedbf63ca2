"""The results block that the Compare and the Run page share."""

from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from ui.components.data_table import DataTable
from ui.components.generations import FollowUpAnswers, Generations
from ui.components.kept_tokens import KeptTokens
from ui.components.run_charts import RunCharts
from ui.components.run_links import RunLinks
from ui.components.section_links import SectionLinks
from ui.components.status_bar import StatusBar
from ui.components.verdict import VerdictStrip

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
    "The text is shaded the same way: choose a token or a span to see who still keeps it."
)
PERTURBATION_TEXT = (
    "### Perturbation at the first decoding step\n"
    "How far eviction moves the model's state before a token is chosen; lower is closer to the "
    "full cache. Head outputs are [[isolated]], hidden states [[cascaded]]; ratios are to the "
    "variant's own [[base]]. A single head and the whole model may disagree. Ignore differences "
    "below the [[rounding floor]]."
)


RESULTS = ["ckv-results"]  # around whose sections SectionLinks lead


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsBlock:
    """The built components.

    Attributes:
        area: holds everything but the verdict and the status bar; hidden until there is a run.
        outputs: all that a feed writes, in its order.
    """

    area: gr.Column
    outputs: list[Component]


# Of an area that is built with the page, though not seen: what comes for a component while Gradio
# builds it may be lost. (A column of Gradio's shows what is to be "hidden".)
UNSEEN = "ckv-unseen"


def seen(*, is_seen: bool) -> Any:
    """Update of an area of results: whether it is seen."""
    return gr.update(elem_classes=RESULTS if is_seen else [*RESULTS, UNSEEN])


def build_results() -> ResultsBlock:
    """Lay out an empty block that is not seen; call inside a Blocks context."""
    verdict, status = VerdictStrip(elem_id="verdict"), StatusBar(elem_id="status")
    with gr.Column(elem_id="results", elem_classes=[*RESULTS, UNSEEN]) as area:
        # The sections' headings come one level below it.
        gr.HTML("<h2>Results</h2>", elem_classes=["bare", "ckv-offscreen"])
        links = RunLinks(elem_id="run-links")
        SectionLinks(elem_classes=["ckv-sections-bar"])
        summary = DataTable(elem_id="summary", section=RECEIPT_TEXT)
        generations = Generations(elem_id="generations", section=GENERATIONS_TEXT)
        follow_ups = FollowUpAnswers(elem_id="follow-ups")
        kept = KeptTokens(elem_id="kept", section=KEPT_TEXT)
        charts = RunCharts(elem_id="charts", section=PERTURBATION_TEXT)
        diagnostics = RunCharts(elem_id="diagnostics")
    outputs: list[Component] = [
        verdict,
        status,
        links,
        summary,
        generations,
        follow_ups,
        kept,
        charts,
        diagnostics,
    ]
    return ResultsBlock(area=area, outputs=outputs)
