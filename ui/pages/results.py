"""The results block that the Compare and the Run page share."""

from dataclasses import dataclass

import gradio as gr
from gradio.components import Component

from ui.components.generations import FollowUpAnswers, Generations
from ui.components.kept_tokens import KeptTokens
from ui.components.run_charts import RunCharts
from ui.components.status_bar import StatusBar
from ui.components.summary_table import SummaryTable
from ui.pages.parts import RunLinks

RECEIPT_TEXT = (
    "### Receipt and summary\n"
    "Asked and got, per variant. The full cache is the reference; point at a column's name for "
    "what it means."
)
GENERATIONS_TEXT = (
    "### Generations\n"
    "All variants decode greedily from one prompt. The first token that differs from the full "
    "cache's is underlined; what follows it is another text, not another quality."
)
KEPT_TEXT = (
    "### Kept tokens\n"
    "Each row is a layer, each column a place in the prompt; brighter means more KV heads keep it. "
    "The text is shaded the same way: click a token or select a span to see who still holds it."
)
PERTURBATION_TEXT = (
    "### Perturbation at the first decoding step\n"
    "How far eviction moves the model's state before a token is chosen; lower is closer to the "
    "full cache. A single head and the whole model may disagree."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsBlock:
    """The built components.

    Attributes:
        area: holds everything but the status bar; hidden until there is a run.
        outputs: all that a feed writes, in its order.
    """

    area: gr.Column
    outputs: list[Component]


def build_results(*, visible: bool) -> ResultsBlock:
    """Lay out an empty block; call inside a Blocks context."""
    status = StatusBar(elem_id="status")
    with gr.Column(visible=visible, elem_id="results") as area:
        # The sections' headings come one level below it.
        gr.HTML("<h2>Results</h2>", elem_classes=["bare", "offscreen"])
        links = RunLinks(elem_id="run-links")
        summary = SummaryTable(elem_id="summary", section=RECEIPT_TEXT)
        generations = Generations(elem_id="generations", section=GENERATIONS_TEXT)
        follow_ups = FollowUpAnswers(elem_id="follow-ups")
        kept = KeptTokens(elem_id="kept", section=KEPT_TEXT)
        charts = RunCharts(elem_id="charts", section=PERTURBATION_TEXT)
        laboratory = RunCharts(elem_id="laboratory")
    return ResultsBlock(
        area=area,
        outputs=[status, links, summary, generations, follow_ups, kept, charts, laboratory],
    )
