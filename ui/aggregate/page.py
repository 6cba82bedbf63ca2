"""The Aggregate page: several stored runs of one model, taken together over their prompts."""

from typing import Any

import gradio as gr

from ckv_core.analysis.aggregate import Aggregate
from ckv_core.errors import CkvError
from ckv_core.experiment.stats import MIN_PROMPTS
from ui.aggregate.chosen import MAX_RUNS, load_together, read_slugs
from ui.compare.prompt_controls import text
from ui.components.data_table import DataTable
from ui.components.notice import Notice
from ui.components.run_charts import RunCharts
from ui.components.section_links import SectionLinks
from ui.results.block import RESULTS
from ui.results.chart_views import aggregate_value
from ui.services.services import Services
from ui.shell.parts import AT_ONCE, TO_RUNS, said
from ui.tables.aggregate import MAIN_FIGURES, AggregatedRuns, variant_name
from ui.tables.data_table import Cells, column, count, data_table, table_row, text_column
from ui.tables.pairs import pairs_table, shown_interval

INTRO = (
    "## Aggregate\n"
    "Means over prompts with 95 % intervals, for variants of the same settings. Runs of "
    "one prompt are one sample: a variant that is in several of them counts once, by the newest."
)
PAIRS_TEXT = (
    "### Compared prompt by prompt\n"
    "Each variant minus its base, and minus the full cache, on the same prompts."
)
MEANS_TEXT = "### Means over the prompts\nOne row per variant; a column's name sorts by it."
CHARTS_TEXT = "### Charts of the means\nBars are the intervals."
SHOW_ADDRESS = """(text) => {
  const ids = text.split(/[\\s,]+/).filter(Boolean).join(",");
  const url = new URL(location.href);
  url.searchParams.set("ids", ids);
  history.replaceState(null, "", url);
  return [text];
}"""


class AggregatePage:
    def __init__(self, services: Services) -> None:
        self._services = services
        gr.Markdown(INTRO, elem_classes=["section"])
        with gr.Row(equal_height=False, elem_id="aggregate-chosen"):
            told = f"Run IDs, comma-separated; up to {MAX_RUNS}."
            self.ids = text("aggregate-ids", "Runs", told, (1, 4), scale=4, min_width=280)
            self.show = gr.Button("Show", variant="primary", elem_id="aggregate-show", scale=0)
        self.notice = Notice(elem_id="aggregate-notice")
        named: dict[str, Any] = {"elem_id": "aggregate-results", "elem_classes": RESULTS}
        with gr.Column(visible=False, **named) as self.area:
            SectionLinks(elem_classes=["ckv-sections-bar"])
            self.table = DataTable(elem_id="aggregate-table", section=MEANS_TEXT)
            self.pairs = DataTable(elem_id="aggregate-pairs", section=PAIRS_TEXT)
            self.charts = RunCharts(elem_id="aggregate-charts", section=CHARTS_TEXT)

    def wire(self, page: gr.Blocks) -> None:
        outputs: list[Any] = [self.area, self.notice, self.table, self.pairs, self.charts]
        page.load(self.open, None, [self.ids, *outputs], **AT_ONCE)
        asked = [self.show.click, self.ids.submit]
        gr.on(asked, self.present, [self.ids], outputs, js=SHOW_ADDRESS, **AT_ONCE)

    def open(self, request: gr.Request) -> list[Any]:
        """What the address asks for: /aggregate?ids=a,b,c."""
        ids = request.query_params.get("ids", "") if request else ""
        if not ids.strip():
            told = said("Tick runs in the list of runs, or type their IDs here.", "", (TO_RUNS,))
            return ["", gr.update(visible=False), told, *[gr.skip()] * 3]
        return [ids, *self.present(ids)]

    def present(self, ids: str) -> list[Any]:
        """The chosen runs together, or one sentence on why not."""
        try:
            runs = load_together(self._services, ids)
        except CkvError as error:
            told = said(str(error), "error", (TO_RUNS,))
            return [gr.update(visible=False), told, *[gr.skip()] * 3]
        prompts, variants = _counted(runs.n, "prompt"), _counted(len(runs.members), "variant")
        summary = f"{prompts}, {variants}, {runs.model}."
        return [
            gr.update(visible=True),
            said("\n".join([summary, *runs.notes]), "warn" if runs.notes else ""),
            means_table(runs),
            pairs_table(runs),
            aggregate_value(read_slugs(ids), runs),
        ]


def means_table(runs: AggregatedRuns) -> dict[str, Any]:
    """Value of the DataTable: one row per variant; the file has the intervals' ends too."""
    known = runs.known(MAIN_FIGURES)
    columns = [
        text_column("variant", "Variant"),
        column("budget", "Budget", "requested"),
        column("n", "n", "prompts"),
    ]
    for figure in known:
        columns.append(column(figure.key, figure.mean_label, figure.unit_name))
        columns += [
            column(f"{figure.key}_{end}", f"{figure.mean_label} {end}", hidden=True)
            for end in ("low", "high")
        ]
    if any(member.cut for member in runs.members):
        columns.append(column("cut", "Cut", "before the answer"))
    columns.append(column("wins", "Heads won", "of the means"))
    if any(member.violations is not None for member in runs.members):
        columns.append(column("broken", "Bounds broken", "of sigma over 0.5"))
    columns.append(text_column("spec", "SPEC"))
    looks = runs.looks
    return data_table(
        "Means over the prompts",
        columns,
        [
            table_row(_cells(member), looks[member.joined.place], mark)
            for member, mark in zip(runs.members, runs.regimes.marks, strict=True)
        ],
        file="aggregate.csv",
        head=runs.regimes.head,
        note="Mean over prompts, and 95 % interval: Wilson's for shares and scores, Student's for "
        f"others where n is {MIN_PROMPTS} or more. Intervals beside one "
        "another are no comparison: see the pairs below. Heads won: query heads "
        "whose mean L1 over the prompts is below that of the same variant without CriticalKV. "
        "Bounds broken: heads with sigma over 0.5 where L1 <= theta <= theta-hat <= relaxed fails.",
    )


def _cells(member: Aggregate) -> Cells:
    n = member.joined.n
    asked = member.joined.budget
    cells: Cells = {
        "variant": {"text": variant_name(member.joined, with_budget=False)},
        "budget": {"text": str(asked), "value": asked.amount} if asked else {"text": ""},
        "spec": {"text": member.spec},
        "n": count(n),
    }
    for figure in MAIN_FIGURES:
        mean = member.figures.get(figure.key)
        if mean is None:
            continue
        text = shown_interval(mean, is_share=figure.is_share)
        text += "" if mean.n == n else f", n = {mean.n}"
        cells[figure.key] = {"text": text, "value": mean.mean}
        ends = {"low": mean.low, "high": mean.high}
        cells |= {f"{figure.key}_{end}": {"value": value} for end, value in ends.items()}
    cells["cut"] = {"text": f"{member.cut} of {n}", "value": member.cut}
    if (wins := member.head_wins) and wins.heads:
        text = f"{wins.count:,} of {wins.heads:,} ({wins.share:.1%})"
        cells["wins"] = {"text": text, "value": wins.count}
    if member.violations is not None:
        text = f"{member.violations:,} of {member.checked:,}"
        cells["broken"] = {"text": text, "value": member.violations}
    return cells


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
