"""The page /several?ids=a,b: saved runs as one table, and what differs between a few of them."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from ckv_core.errors import CkvError
from ckv_core.experiment.points_table import points_table
from ui.components.base import DataTable, Notice, RunCharts
from ui.results.block import RESULTS
from ui.results.chart_views import several_value
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.several.differences import MOST_BESIDE, beside_value
from ui.several.routes import load_runs, take_together
from ui.shell.parts import AT_ONCE, SILENT, TO_RUNS, Tone, notice_value
from ui.tables.points import look_values

INTRO = "## Several runs\nWhich method, at which budget, over the prompts of the chosen runs."
TABLE_TEXT = (
    "### The runs together\nRuns of one prompt are one sample: a variant that is in several of "
    "them counts once, by the newest. The ? at a column says what it means."
)
CHART_TEXT = "### Against the budget\nBars are the 95 % intervals."
BESIDE_TEXT = (
    "### Side by side\nRun A is the baseline. Text that differs from it is underlined. Variants of "
    "the same method are paired, those of equal settings first. An unfinished run is left out."
)


class SeveralPage:
    def __init__(self, services: Services) -> None:
        self._services = services
        gr.Markdown(INTRO, elem_classes=["section"])
        self.notice = Notice(elem_id="several-notice")
        with gr.Column(elem_id="several-results", elem_classes=RESULTS):
            with gr.Column(visible=False) as self.beside:
                self.differences = DataTable(elem_id="several-beside", section=BESIDE_TEXT)
            with gr.Column(visible=False) as self.together:
                self.table = DataTable(elem_id="several-table", section=TABLE_TEXT)
                self.charts = RunCharts(elem_id="several-charts", section=CHART_TEXT)

    def wire(self, page: gr.Blocks) -> None:
        together = [self.together, self.table, self.charts]
        beside = [self.beside, self.differences]
        page.load(self.open, None, [self.notice, *together, *beside], **AT_ONCE)

    def open(self, request: gr.Request) -> list[Any]:
        """Show the runs that the address names, or say why not.

        `view=table` is their means alone, `view=beside` what differs between a few of them.
        """
        try:
            runs = load_runs(self._services, request.query_params.get("ids", ""))
        except CkvError as error:
            hidden = [gr.update(visible=False), gr.skip(), gr.skip()]
            refusal = notice_value(str(error), "error", (TO_RUNS,))
            return [refusal, *hidden, *hidden[:2]]
        view = request.query_params.get("view", "")
        beside: list[Any] = [gr.update(visible=False), gr.skip()]
        if len(runs) <= MOST_BESIDE:
            beside = [gr.update(visible=True), beside_value(runs)]
        shown = [*_together(runs), *beside]
        if view == "table" and len(runs) <= MOST_BESIDE:
            shown[4:] = [gr.update(visible=False), gr.skip()]
        elif view == "beside" and len(runs) <= MOST_BESIDE:
            shown[:4] = [SILENT, gr.update(visible=False), gr.skip(), gr.skip()]
        return shown


def _together(runs: Sequence[RunSnapshot]) -> list[Any]:
    """The notice and the table of all runs; runs without one still differ."""
    try:
        found = take_together(runs)
    except CkvError as error:
        notice = notice_value(f"No common table: {error}", "warn", (TO_RUNS,))
        return [notice, gr.update(visible=False), gr.skip(), gr.skip()]
    slugs = ",".join(run.slug for run in runs)
    files = [
        (f"Means as {kind.upper()}", f"/several/{slugs}/means.{kind}") for kind in ("csv", "json")
    ]
    n = found.n
    summary = f"{n} prompt{'' if n == 1 else 's'}, {found.model}."
    tone: Tone = "warn" if found.notes else ""
    return [
        notice_value("\n".join([summary, *found.notes]), tone, (*files, TO_RUNS)),
        gr.update(visible=True),
        points_table(found, "The runs together", file="several-runs.csv").value(look_values(found)),
        several_value(slugs, found),
    ]
