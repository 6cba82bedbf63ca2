"""The contents of a report: components with their values, charts, and the files it carries."""

import itertools
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from urllib.parse import urlencode

import plotly.graph_objects as go

from ckv_core.errors import ConfigError
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.sweep import sweep_points, sweep_savings
from storage.records import RunNotes
from ui.charts.catalog import figure_of
from ui.charts.layout import Choices
from ui.charts.study import STUDY_CHARTS
from ui.components.base import (
    Answers,
    ChosenCell,
    DataTable,
    Facts,
    FollowUpAnswers,
    KeptTokens,
    OutcomeGrid,
    RunCharts,
    Scripted,
    VerdictStrip,
)
from ui.looks.glossary import without_marks
from ui.results import block as page
from ui.results import sweep_area, views
from ui.results.answers import answers_value, follow_ups_value
from ui.results.chart_views import curves_value, diagnostics_value, perturbation_value
from ui.results.grid import chosen_value, grid_value
from ui.results.samples_area import REPORT_TEXTS, reading_values
from ui.services.live_runs import RunSnapshot
from ui.tables.points import summary_value, sweep_value
from ui.tables.samples import facts_rows

# Name of a chart and its choices -> the figure; None where there is no data.
Draw = Callable[[str, Choices], go.Figure | None]
# Drawing one takes some 50 ms.
FIGURES_PER_CHART = 40
CUT = "To stay small, the report has some of the choices only in: {names}. The app has them all."


def embedded_charts(value: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A RunCharts value for the report, and the words above it.

    It has few enough choices, no heading of its own and no links to tables.
    """
    charts = [_few_choices(chart) for chart in value["charts"]]
    pairs = zip(value["charts"], charts, strict=True)
    cut = [new["title"] for old, new in pairs if new["controls"] != old["controls"]]
    words = [value["text"]] if value["heading"] else []
    if cut:
        words.append(CUT.format(names=", ".join(cut)))
    return {**value, "heading": "", "charts": charts}, " ".join(words)


def chart_figures(draw: Draw, value: dict[str, Any]) -> dict[str, bytes]:
    """Address of each chart -> JSON {choices as in a query: figure}."""
    base = f"{value['base']}/{value['slug']}/figure"
    return {f"{base}/{chart['name']}": _figures(draw, chart) for chart in value["charts"]}


def _figures(draw: Draw, chart: dict[str, Any]) -> bytes:
    controls = chart["controls"]
    options = [[str(option) for option, _ in control["options"]] for control in controls]
    figures = []
    for chosen in itertools.product(*options):
        choices = {control["name"]: one for control, one in zip(controls, chosen, strict=True)}
        figure = draw(chart["name"], choices)
        if figure is not None:
            figures.append(f"{json.dumps(urlencode(choices))}:{figure.to_json()}")
    return f"{{{','.join(figures)}}}".encode()


def _few_choices(chart: dict[str, Any]) -> dict[str, Any]:
    """Drop last options until the figures are few enough; other quantities go before variants."""
    controls = [{**control, "options": list(control["options"])} for control in chart["controls"]]
    for control in sorted(controls, key=lambda control: control["name"] == "variant"):
        others = math.prod(len(each["options"]) for each in controls if each is not control)
        del control["options"][max(1, FIGURES_PER_CHART // others) :]
    return {**chart, "csv": "", "controls": controls}


Group = Literal["kept", "charts"]
GROUPS: dict[Group, str] = {"kept": "kept tokens and prompt", "charts": "charts"}
NO_GROUP = f"A report can be made without {', '.join(GROUPS)}; name some of these."
SETTINGS = "### Settings and environment"
LEFT_OUT = "This part was left out of the report."
Value = dict[str, Any] | None
Shown = list[tuple[Scripted, Value]]


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page.

    Attributes:
        name: anchor, unique on the page.
        shown: components and their values.
    """

    name: str
    heading: str
    text: str
    shown: Shown = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Contents:
    """Sections, and what their components fetch: bytes by address, by what can be left out."""

    without: Collection[Group] = ()
    sections: list[Section] = field(default_factory=list)
    files: dict[Group, dict[str, bytes]] = field(default_factory=dict)

    def add(self, name: str, markdown: str, *shown: tuple[Scripted, Value]) -> None:
        """Append a section with the heading and words that a page has above it."""
        heading, _, words = without_marks(markdown).removeprefix("### ").partition("\n")
        self.sections.append(Section(name, heading, words, list(shown)))

    def add_charts(self, name: str, markdown: str, value: Value, draw: Draw) -> None:
        """Append a section of charts; nothing where there are no such charts."""
        if value is None:
            return
        if "charts" in self.without:
            self.add(name, f"{markdown.splitlines()[0]}\n{LEFT_OUT}")
            return
        value, words = embedded_charts(value)
        joint = " " if "\n" in markdown else "\n"
        self.add(name, f"{markdown}{joint}{words}" if words else markdown, (RunCharts, value))
        self.files.setdefault("charts", {}).update(chart_figures(draw, value))


def read_groups(text: str) -> list[Group]:
    """`kept,charts` as an address or a command line gives it; empty for nothing.

    Raises:
        ConfigError: there is no such group.
    """
    named = [name.strip() for name in text.split(",") if name.strip()]
    if not set(named) <= set(GROUPS):
        raise ConfigError(NO_GROUP)
    return [group for group in GROUPS if group in named]


def contents_of(run: RunSnapshot, notes: RunNotes, without: Collection[Group]) -> Contents:
    """Everything of a run that is over, but the groups to leave out."""
    contents = Contents(without)
    draw = partial(figure_of, run.result)
    if (verdict := views.verdict_value(run)) is not None:
        contents.add("verdict", "### Outcome", (VerdictStrip, verdict))
    if run.request.kind == "sweep":
        points = sweep_value(run.result, sweep_points(run.result, run.request.answer))
        savings = sweep_value(run.result, sweep_savings(run.result, 0))
        grid, chosen = (OutcomeGrid, grid_value(run)), (ChosenCell, chosen_value(run))
        contents.add("grid", "### Methods by budgets", grid, chosen)
        contents.add_charts("curves", sweep_area.CURVES_TEXT, curves_value(run), draw)
        contents.add("savings", sweep_area.SAVINGS_TEXT, (DataTable, savings))
        contents.add("points", sweep_area.POINTS_TEXT, (DataTable, points))
    else:
        answers = ((Answers, answers_value(run)), (FollowUpAnswers, follow_ups_value(run)))
        contents.add("answers", "### Answers", *answers)
        _add_kept(contents, run)
        perturbation, diagnostics = perturbation_value(run), diagnostics_value(run)
        contents.add_charts("perturbation", page.PERTURBATION_TEXT, perturbation, draw)
        contents.add_charts("diagnostics", "### Diagnostics", diagnostics, draw)
        table = summary_value(run.result, ended=True)
        contents.add("summary", page.FIGURES_TEXT, (DataTable, table))
    contents.add("run", SETTINGS, (Facts, _facts(run, notes, without)))
    return contents


def contents_of_samples(reading: Reading, facts: Mapping[str, Any]) -> Contents:
    """The answer, tables, charts, samples and settings; `facts` are `StoredStudy.facts`."""
    contents = Contents()

    def draw(name: str, choices: Choices) -> go.Figure | None:
        return STUDY_CHARTS[name].figure(reading, choices)

    verdict, *rest = reading_values(reading, None).items()
    contents.add("verdict", "### The answer", (VerdictStrip, verdict[1]))
    for name, value in rest:
        text = REPORT_TEXTS.get(name)
        if value is None or not text:
            continue
        if "charts" in value:
            contents.add_charts(name, text, value, draw)
        else:
            for row in value["rows"]:
                for cell in row["cells"].values():
                    cell.pop("href", None)  # a file leads to no page of the app
            contents.add(name, text, (DataTable, value))
    contents.add("study", SETTINGS, (Facts, {"rows": facts_rows(reading, facts)}))
    return contents


def _add_kept(contents: Contents, run: RunSnapshot) -> None:
    value, prompt = views.kept_value(run), run.result.prompt
    if "kept" in contents.without:
        contents.add("kept", f"{page.KEPT_TEXT.splitlines()[0]}\n{LEFT_OUT}")
        return
    contents.add("kept", page.KEPT_TEXT, (KeptTokens, value))
    if value is None or prompt is None:
        return
    base = f"{value['base']}/{run.slug}"
    contents.files["kept"] = files = {f"{base}/prompt": _json(views.prompt_value(prompt))}
    for index, variant in enumerate(run.result.variants):
        if variant.retained is not None:
            files[f"{base}/{index}/retained"] = variant.retained.bits
        if variant.held is not None:
            files[f"{base}/{index}/evicted"] = variant.held.evicted


def _facts(run: RunSnapshot, notes: RunNotes, without: Collection[Group]) -> Value:
    """The rows of the Run page, and what a page says elsewhere."""
    stages = "\n".join(f"{name}: {ms:,.0f} ms" for name, ms in run.stage_ms.items())
    more = [
        ("State", f"{run.state}. {run.reason}" if run.reason else run.state),
        ("Note", notes.note),
        ("Tags", ", ".join(notes.tags)),
        ("Wall clock of the stages", stages),
        ("Left out of the report", ", ".join(GROUPS[name] for name in without)),
    ]
    rows = [{"label": label, "text": text} for label, text in more if text]
    return {"rows": [*rows, *views.details_value(run)["rows"]]}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
