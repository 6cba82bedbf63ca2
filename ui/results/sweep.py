"""The block of results at several budgets, and what feeds it on the Compare and the Run page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.analysis.sweep import curves
from ckv_core.errors import CkvError
from ckv_core.request.compare_request import CompareRequest
from ui.components.base import section_html
from ui.components.data_table import DataTable
from ui.components.run_charts import RunCharts
from ui.components.run_links import RunLinks
from ui.components.section_links import SectionLinks
from ui.results import chart_views, views
from ui.results.block import RESULTS, UNSEEN, ResultsBlock, seen
from ui.results.live import Feed, find_run
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.shell.parts import AT_ONCE
from ui.tables.sweep import alphas_table, curve_name, points_table, savings_table

SHARED_TOP = 2  # outputs that both kinds of results share: verdict and status bar
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepBlock(ResultsBlock):
    """The built components; the quality of `reference` is matched in the table of savings."""

    reference: Any
    savings: Component

    def wire(self, services: Services, slug: Component) -> None:

        def matched(name: object, reference: object) -> Any:
            try:
                return savings_table(find_run(services, name).result, reference)
            except CkvError:
                return gr.skip()

        self.reference.input(matched, [slug, self.reference], [self.savings], **AT_ONCE)


def build_sweep_results(*, top: Sequence[Component]) -> SweepBlock:
    """Lay out an empty block below the page's verdict and status bar, which are `top`."""
    verdict, status = top
    with gr.Column(elem_id="sweep-results", elem_classes=[*RESULTS, UNSEEN]) as area:
        gr.HTML("<h2>Results of the sweep</h2>", elem_classes=["bare", "ckv-offscreen"])
        links = RunLinks(elem_id="sweep-links")
        SectionLinks(elem_classes=["ckv-sections-bar"])
        lines = RunCharts(elem_id="sweep-curves", section=CURVES_TEXT)
        gr.HTML(section_html(SAVINGS_TEXT), elem_id="sweep-savings-head", elem_classes=["bare"])
        reference = gr.Dropdown(
            [], label="Match the quality of", visible=False, elem_id="sweep-reference"
        )
        savings = DataTable(elem_id="sweep-savings")
        alphas = DataTable(elem_id="sweep-alphas", section=ALPHA_TEXT)
        alpha_charts = RunCharts(elem_id="sweep-alpha-charts")
        points = DataTable(elem_id="sweep-points", section=POINTS_TEXT)
    return SweepBlock(
        area=area,
        outputs=[verdict, status, links, lines, reference, savings, alphas, alpha_charts, points],
        reference=reference,
        savings=savings,
    )


def shown_areas(request: CompareRequest) -> list[Any]:
    """Updates of the areas of comparisons and of sweeps: one of them is seen."""
    is_sweep = request.kind == "sweep"
    return [seen(is_seen=not is_sweep), seen(is_seen=is_sweep)]


class SweepFeed(Feed):
    """Remembers what one viewer was sent; what compares points waits until all are measured."""

    def updates(self, snapshot: RunSnapshot, now: datetime) -> list[Any]:
        result = snapshot.result
        ready = chart_views.is_swept(snapshot)
        names = [(curve_name(c), at) for at, c in enumerate(curves(result))] if ready else []
        first = names[0][1] if names else None
        values = {
            "verdict": views.verdict_value(snapshot),
            "status": views.status_value(snapshot, now),
            "links": views.links_value(snapshot),
            "curves": chart_views.curves_value(snapshot),
            "reference": gr.update(choices=names, value=first, visible=len(names) > 1),
            # The reader may have matched another line: sent once.
            "savings": savings_table(result, first) if ready else None,
            "alphas": alphas_table(result) if ready else None,
            "alpha_charts": chart_views.alphas_value(snapshot),
            "points": points_table(result, snapshot.request.answer),
        }
        return [self._changed(name, value) for name, value in values.items()]


class EitherFeed(Feed):
    """Feeds the block of comparisons or that of sweeps on a page that has both.

    The blocks share verdict and status bar, so the sweep's first outputs are the other block's. The
    block that is not fed stays empty; for a skipped output Gradio would build the component anew.
    """

    def __init__(self, compare: Feed, sweep: SweepFeed) -> None:
        self._compare = compare
        self._sweeps = sweep

    @property
    def width(self) -> int:
        return self._compare.width + self._sweeps.width - SHARED_TOP

    def updates(self, snapshot: RunSnapshot, now: datetime) -> list[Any]:
        """Updates of the comparison's block, then of the sweep's without what they share."""
        if snapshot.request.kind == "sweep":
            sent = self._sweeps.updates(snapshot, now)
            unused = [None] * (self._compare.width - SHARED_TOP)
            return [*sent[:SHARED_TOP], *unused, *sent[SHARED_TOP:]]
        return [*self._compare.updates(snapshot, now), *[None] * (self._sweeps.width - SHARED_TOP)]
