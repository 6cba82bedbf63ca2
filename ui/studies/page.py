"""The page of a run of many samples: its answer, then what that is read from, as it goes on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, urlencode

import gradio as gr

from ckv_core.errors import CkvError, StorageError
from storage.records import StoredStudy
from storage.repository import is_slug
from ui.accounts.turns import in_turn
from ui.charts.study import charts_value
from ui.components.data_table import DataTable
from ui.components.facts import Facts
from ui.components.notice import Notice
from ui.components.run_charts import RunCharts
from ui.components.section_links import SectionLinks
from ui.components.verdict import VerdictStrip
from ui.results.block import RESULTS, UNSEEN, seen
from ui.results.share import ShareSection
from ui.services.services import Services
from ui.services.studies import NO_STUDY, StudyView
from ui.shell.parts import AT_ONCE, PRIVATE, SHARED, SILENT, said, tried
from ui.studies.progress import progress_sentence
from ui.tables.study import (
    StudyReading,
    decision_table,
    facts_rows,
    pairs_table,
    savings_table,
    scores_table,
    tasks_table,
    verdict_value,
)
from ui.tables.study_samples import CELL_NAMES, Cell, read_cell, samples_table

TO_RUNS = ("List of runs", "/runs")
ASKED = said("Asked.")
WATCH_S = 1.0
ADDRESS_CHARS = 2_000
# Who followed a score is led to its samples, once they are drawn.
SHOW_CELL = """() => {
  if (!new URLSearchParams(location.search).has("variant")) return;
  const drawn = setInterval(() => {
    if (!document.querySelector("#study-samples tbody tr")?.offsetParent) return;
    clearInterval(drawn);
    document.getElementById("study-cell").scrollIntoView();
  }, 100);
}"""
READ_EVERY = 5  # watches; reading a big study takes a second
DECISION_TEXT = "### The answer, method by method\nBest first."
CHARTS_TEXT = (
    "### Score against budget, bytes and perturbation\n"
    "Bars are 95 % intervals. Cells of a needle map lead to their samples."
)
SCORES_TEXT = (
    "### Every method and budget\nA column's name sorts by it; a score leads to its samples."
)
PAIRS_TEXT = "### Paired differences\nThe same samples, with and without."
SAVINGS_TEXT = (
    "### Budget saved at an equal score\n"
    "What a method with CriticalKV needs to answer as well as the same without."
)
TASKS_TEXT = "### Task by task\nWith and without CriticalKV. A score leads to its samples."
SAMPLES_TEXT = (
    "### Samples\n"
    "Where methods disagree most comes first. A sample opens in Compare with the study's methods, "
    "whose run shows who still keeps the words of the answer."
)


class StudyPage:
    def __init__(self, services: Services) -> None:
        self._services = services
        self.slug = gr.Textbox(visible="hidden", elem_id="slug")
        self.asked = gr.Textbox(visible="hidden", elem_id="asked")
        self.title = gr.Markdown("## Study", elem_id="study-title", elem_classes=["section"])
        self.notice = Notice(elem_id="study-progress")
        with gr.Row(elem_id="study-actions"):
            self.resume = gr.Button("Go on", visible=False, elem_id="study-resume", scale=0)
            self.cancel = gr.Button("Cancel", visible=False, elem_id="study-cancel", scale=0)
        with gr.Column(elem_id="study-results", elem_classes=[*RESULTS, UNSEEN]) as self.area:
            self.verdict = VerdictStrip(elem_id="verdict")
            SectionLinks(elem_classes=["ckv-sections-bar"])
            self.decision = DataTable(elem_id="study-decision", section=DECISION_TEXT)
            self.charts = RunCharts(elem_id="study-charts", section=CHARTS_TEXT)
            self.scores = DataTable(elem_id="study-scores", section=SCORES_TEXT)
            self.pairs = DataTable(elem_id="study-pairs", section=PAIRS_TEXT)
            self.savings = DataTable(elem_id="study-savings", section=SAVINGS_TEXT)
            self.tasks = DataTable(elem_id="study-tasks", section=TASKS_TEXT)
            self.cell = Notice(elem_id="study-cell")
            self.samples = DataTable(elem_id="study-samples", section=SAMPLES_TEXT)
            self.files = Notice(elem_id="study-files")
            self.facts = Facts(elem_id="study-facts")
        self._share = ShareSection(services)
        # What `read_values` fills, in its order.
        self._read: list[Any] = [self.verdict, self.decision, self.charts, self.scores, self.pairs]
        self._read += [self.savings, self.tasks, self.cell, self.samples, self.files, self.facts]

    def wire(self, page: gr.Blocks) -> None:
        followed = [self.title, self.notice, self.resume, self.cancel, self.area, *self._read]
        address = [self.slug, self.asked]
        page.load(None, None, None, js=SHOW_CELL, **PRIVATE)
        opened = page.load(self.open, None, [*address, *self._share.outputs], **AT_ONCE)
        self._share.wire(self.slug)
        opened.then(self.follow, address, followed, **SHARED)
        for button, act in ((self.resume, self.go_on), (self.cancel, self.stop)):
            button.click(act, [self.slug], [self.notice], **AT_ONCE).then(
                self.follow, address, followed, trigger_mode="multiple", **SHARED
            )

    # --- handlers -----------------------------------------------------------------------

    def open(self, request: gr.Request) -> list[Any]:
        """The study that the address names, and the cell whose samples it asks for."""
        asked = request.query_params if request else {}
        cell = {name: asked[name] for name in CELL_NAMES if asked.get(name) is not None}
        slug = str(asked.get("id", ""))
        return [slug, urlencode(cell), *self._share.open(slug)]

    async def follow(self, slug: object, asked: object) -> AsyncIterator[list[Any]]:
        """The study now, and as it goes on until it rests."""
        shown, turn = -1, 0
        while True:
            try:
                view = await in_turn(self._view, slug)
                goes_on = view.state in ("running", "stopping", "queued")
                known = view.stored.counts.done + view.stored.counts.failed
                read = [gr.skip()] * len(self._read)
                if known != shown and (turn % READ_EVERY == 0 or not goes_on):
                    shown, read = known, await in_turn(self._values, slug, asked)
            except CkvError as error:
                hidden = [*[gr.update(visible=False)] * 2, seen(is_seen=False)]
                told = said(str(error) or NO_STUDY, "error", (TO_RUNS,))
                yield ["## Study", told, *hidden, *[gr.skip()] * len(self._read)]
                return
            may_pass = view.stored.counts.failed - view.stored.counts.failed_for_good
            is_whole = view.stored.state == "done" and not may_pass
            may_change = await in_turn(self._services.may_change, view.stored.slug)
            yield [
                f"## {_plain(view.stored.study.name)}",
                said(progress_sentence(view), "" if goes_on or is_whole else "warn"),
                gr.update(visible=may_change and not goes_on and not is_whole),
                gr.update(visible=may_change and goes_on and view.state != "stopping"),
                seen(is_seen=True),
                *read,
            ]
            if not goes_on:
                return
            turn += 1
            await asyncio.sleep(WATCH_S)

    def _view(self, slug: object) -> StudyView:
        if not is_slug(slug):
            raise StorageError(NO_STUDY)
        return self._services.studies.view(str(slug))

    def _values(self, slug: object, asked: object) -> list[Any]:
        studies = self._services.studies
        reading = studies.reading(slug)
        cell = read_cell(reading, dict(parse_qsl(str(asked)[:ADDRESS_CHARS], True)))
        return read_values(reading, studies.view(reading.slug).stored, cell)

    def go_on(self, slug: str) -> dict[str, Any]:
        """Run what is left, failed ones again."""
        return tried(self._services.studies.resume, slug, done=ASKED)

    def stop(self, slug: str) -> dict[str, Any]:
        """Stop it; what is there stays."""
        return tried(self._services.cancel_run, slug, done=ASKED)


def read_values(reading: StudyReading, stored: StoredStudy, cell: Cell | None) -> list[Any]:
    """One value per component that shows results; the samples may be those of one cell."""
    return [
        verdict_value(reading),
        decision_table(reading),
        charts_value(reading),
        scores_table(reading),
        pairs_table(reading),
        savings_table(reading),
        tasks_table(reading),
        _of_cell(reading, cell),
        samples_table(reading, cell),
        said("Export: ", "", _links(reading.slug)),
        {"rows": facts_rows(reading, stored.facts)},
    ]


def _of_cell(reading: StudyReading, cell: Cell | None) -> dict[str, Any]:
    if cell is None:
        return SILENT
    told = f"Only the samples of {cell.words(reading)}. "
    return said(told, "", [("All samples", f"/study?id={reading.slug}")])


def _links(slug: str) -> list[tuple[str, str]]:
    base = f"/studies/{slug}"
    return [
        ("all as JSON", f"{base}/study.json"),
        ("with all texts, to import elsewhere", f"{base}/study.json?data"),
        ("study file (YAML)", f"{base}/study.yaml"),
        ("all results as CSV", f"{base}/results.csv"),
        ("scores as CSV", f"{base}/scores.csv"),
        ("report (HTML)", f"{base}/report.html"),
        ("Inspect log", f"{base}/inspect.json"),
    ]


def _plain(name: str) -> str:
    """A name that Markdown reads as text."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]()#+-.!|<>~$" else c for c in name)
