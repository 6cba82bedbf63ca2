"""The results block that the Compare and the Run page share."""

from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.events import RunResult
from ui.charts import budgets_figure, final_figure, head_grid_figure, layer_figure
from ui.components.generations import Generations
from ui.components.kept_tokens import KeptTokens
from ui.components.status_bar import StatusBar
from ui.components.summary_table import SummaryTable
from ui.pages.parts import RunLinks
from ui.views import perturbed_variants

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
        live: what a run feeds on each update: status, links, summary, generations, kept.
        charts: what it feeds once measured: see `figures_of`.
    """

    area: gr.Column
    live: list[Component]
    charts: list[Component]

    @property
    def outputs(self) -> list[Component]:
        """All that a feed writes, in its order."""
        return [*self.live, *self.charts]

    @property
    def head_choice(self) -> Any:
        """Which variant the head grid shows."""
        return self.charts[2]

    @property
    def head_grid(self) -> Component:
        """The chart that follows the choice."""
        return self.charts[3]


def build_results(*, visible: bool) -> ResultsBlock:
    """Lay out an empty block; call inside a Blocks context."""
    status = StatusBar(elem_id="status")
    with gr.Column(visible=visible, elem_id="results") as area:
        # The sections' headings come one level below it.
        gr.HTML("<h2>Results</h2>", elem_classes=["bare", "offscreen"])
        links = RunLinks(elem_id="run-links")
        gr.Markdown(RECEIPT_TEXT, elem_classes=["section"])
        summary = SummaryTable(elem_id="summary")
        gr.Markdown(GENERATIONS_TEXT, elem_classes=["section"])
        generations = Generations(elem_id="generations")
        gr.Markdown(KEPT_TEXT, elem_classes=["section"])
        kept = KeptTokens(elem_id="kept")
        gr.Markdown(PERTURBATION_TEXT, elem_classes=["section"])
        charts = _build_charts()
    live: list[Component] = [status, links, summary, generations, kept]
    return ResultsBlock(area=area, live=live, charts=charts)


def figures_of(result: RunResult | None) -> list[Any]:
    """Values of `ResultsBlock.charts`; empty charts for None."""
    if result is None:
        return [None, None, gr.update(visible=False), None, None]
    indices = perturbed_variants(result)
    choices = [(result.variants[i].label, i) for i in indices]
    chosen = indices[0] if indices else None
    return [
        layer_figure(result),
        final_figure(result),
        gr.update(choices=choices, value=chosen, visible=len(choices) > 1),
        head_grid(result, chosen),
        budgets_figure(result),
    ]


def head_grid(result: RunResult, index: object) -> Any:
    """Figure of one variant's heads against its base; None if it has no base."""
    if index not in perturbed_variants(result) or not isinstance(index, int):
        return None
    return head_grid_figure(result, index)


def _build_charts() -> list[Component]:
    with gr.Row():
        with gr.Column(scale=2, min_width=320):
            layers = gr.Plot(label="Hidden state, layer by layer", elem_id="chart-layers")
        with gr.Column(scale=1, min_width=300):
            final = gr.Plot(label="After the last layer", elem_id="chart-final")
    with gr.Row():
        with gr.Column(min_width=320):
            choice = gr.Radio(
                [],
                label="CriticalKV variant",
                info="Each is set against its own method without CriticalKV.",
                visible=False,
                elem_id="head-choice",
            )
            heads = gr.Plot(label="Heads: CriticalKV against its base", elem_id="chart-heads")
        with gr.Column(min_width=320):
            budgets = gr.Plot(label="Entries kept per layer", elem_id="chart-budgets")
    return [layers, final, choice, heads, budgets]
