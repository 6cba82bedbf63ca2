"""A run or a study as one HTML file that opens offline: the app's components, fed from inside.

No text of theirs stands in the markup: all of it is packed (gzip, base64) and put on the page by
scripts as text. The policy in the file lets run exactly the two scripts whose hashes it names, and
lets nothing be fetched.
"""

import base64
import functools
import gzip
import hashlib
import html
import itertools
import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlencode

import plotly.graph_objects as go

from ckv_core.errors import CkvError
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
from ui.components.modules import joined
from ui.looks.glossary import without_marks
from ui.looks.theme import CSS_PATHS, build_theme
from ui.results import block as page
from ui.results import sweep_area, views
from ui.results.answers import answers_value, follow_ups_value
from ui.results.figure_routes import packed_plotly
from ui.results.grid import chosen_value, grid_value, points_kept_value
from ui.results.samples_area import REPORT_TEXTS, reading_values
from ui.results.views import curves_value, diagnostics_value, perturbation_value
from ui.services.live_runs import RunSnapshot
from ui.tables.points import sampled_value, summary_value, sweep_value
from ui.tables.samples import facts_rows

# --- the contents of a report: components with their values, charts, and the files it carries ---

# Name of a chart and its choices -> the figure; None where there is no data.
Draw = Callable[[str, Choices], go.Figure | None]
# Drawing one takes some 50 ms.
FIGURES_PER_CHART = 40
CUT = "To stay small, the report has only some of the choices in: {names}. The app has them all."


def embedded_charts(value: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A RunCharts value for the report with few enough choices and no links to tables.

    The words above it say what was cut; empty where nothing was.
    """
    charts = [_few_choices(chart) for chart in value["charts"]]
    pairs = zip(value["charts"], charts, strict=True)
    cut = [new["title"] for old, new in pairs if new["controls"] != old["controls"]]
    words = CUT.format(names=", ".join(cut)) if cut else ""
    return {**value, "charts": charts}, words


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


SETTINGS = "### Settings and environment"
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
    """Sections, and what their components fetch: bytes by address.

    `only`: names of the sections to make; None for all.
    """

    only: Collection[str] | None = None
    sections: list[Section] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether the section is to be made."""
        return self.only is None or name in self.only

    def add(self, name: str, markdown: str, *shown: tuple[Scripted, Value]) -> None:
        """Append a section with the heading and words that a page has above it."""
        if not self.has(name):
            return
        heading, _, words = without_marks(markdown).removeprefix("### ").partition("\n")
        self.sections.append(Section(name, heading, words, list(shown)))

    def add_charts(self, name: str, markdown: str, value: Value, draw: Draw) -> None:
        """Append a section of charts; nothing where there are no such charts."""
        if value is None or not self.has(name):
            return
        value, words = embedded_charts(value)
        joint = " " if "\n" in markdown else "\n"
        self.add(name, f"{markdown}{joint}{words}" if words else markdown, (RunCharts, value))
        self.files.update(chart_figures(draw, value))


def contents_of(run: RunSnapshot, notes: RunNotes, only: Collection[str] | None = None) -> Contents:
    """Everything of a run that is over, or these sections alone."""
    contents = Contents(only)
    draw = partial(figure_of, run.result)
    if (verdict := views.verdict_value(run)) is not None:
        contents.add("verdict", "### Outcome", (VerdictStrip, verdict))
    if run.request.kind == "sweep":
        points = sweep_value(run.result, sweep_points(run.result, run.request.answer))
        savings = sweep_value(run.result, sweep_savings(run.result, 0))
        grid, chosen = (OutcomeGrid, grid_value(run)), (ChosenCell, chosen_value(run))
        contents.add("grid", "### Methods by budgets", grid, chosen)
        if maps := points_kept_value(run):
            _add_kept(contents, run, maps, sweep_area.POINT_KEPT_TEXT)
        contents.add_charts("curves", sweep_area.CURVES_TEXT, curves_value(run), draw)
        contents.add("savings", sweep_area.SAVINGS_TEXT, (DataTable, savings))
        contents.add("points", sweep_area.POINTS_TEXT, (DataTable, points))
    else:
        answers = ((Answers, answers_value(run)), (FollowUpAnswers, follow_ups_value(run)))
        contents.add("answers", "### Answers", *answers)
        _add_kept(contents, run, views.kept_value(run), page.KEPT_TEXT)
        perturbation, diagnostics = perturbation_value(run), diagnostics_value(run)
        contents.add_charts("perturbation", page.PERTURBATION_TEXT, perturbation, draw)
        contents.add_charts("diagnostics", page.DIAGNOSTICS_TEXT, diagnostics, draw)
        table = summary_value(run.result, ended=True)
        contents.add("summary", page.FIGURES_TEXT, (DataTable, table))
    if sampled := sampled_value(run.result, run.request.repeats):
        contents.add("sampled", "### Sampled texts", (DataTable, sampled))
    contents.add("run", SETTINGS, (Facts, _facts(run, notes)))
    return contents


def contents_of_samples(reading: Reading, only: Collection[str] | None = None) -> Contents:
    """The answer, tables, charts, samples and settings, or these sections alone."""
    contents = Contents(only=only)

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
    contents.add("study", SETTINGS, (Facts, {"rows": facts_rows(reading)}))
    return contents


def _add_kept(contents: Contents, run: RunSnapshot, value: Value, text: str) -> None:
    prompt = run.result.prompt
    contents.add("kept", text, (KeptTokens, value))
    if value is None or prompt is None or not contents.has("kept"):
        return
    base, files = f"{value['base']}/{run.slug}", contents.files
    files[f"{base}/prompt"] = json.dumps(views.prompt_value(prompt)).encode()
    for index, variant in enumerate(run.result.variants):
        if variant.retained is not None:
            files[f"{base}/{index}/retained"] = variant.retained.bits
        if variant.held is not None:
            files[f"{base}/{index}/evicted"] = variant.held.evicted


def _facts(run: RunSnapshot, notes: RunNotes) -> Value:
    """The rows of the Run page, and what a page says elsewhere."""
    more = [
        ("State", f"{run.state}. {run.reason}" if run.reason else run.state),
        ("Note", notes.note),
    ]
    rows = [{"label": label, "text": text} for label, text in more if text]
    return {"rows": [*rows, *views.details_value(run)["rows"]]}


LIMIT_BYTES = 64 * 2**20
MIB = 2**20
_STYLES = (*CSS_PATHS, Path(__file__).with_name("report.css"))
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>CriticalKV Lab report</title>
<style>
$style
</style>
</head>
<body>
<main class="ckv ckv-report"><noscript>This report is drawn by its own scripts; open it in a
browser that runs them.</noscript></main>
$files
<script>$script</script>
</body>
</html>
""")
# Charts write style attributes, and are saved as pictures by way of data and blob addresses.
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


class ReportTooBigError(CkvError):
    """The file would pass the limit."""


def build_report(
    run: RunSnapshot,
    notes: RunNotes | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> bytes:
    """The file, UTF-8, of a run that is over.

    Raises:
        ReportTooBigError: it would be longer; the sentence says how long.
    """
    contents = contents_of(run, notes or RunNotes())
    made = f"{run.created_at:%Y-%m-%d %H:%M} UTC"
    subtitle = f"Report of CriticalKV Lab on run {run.slug}, made {made}"
    return _packed_report({"title": run.title, "subtitle": subtitle}, contents, limit_bytes)


def build_panel(title: str, contents: Contents, whole: str) -> bytes:
    """The contents, UTF-8, with a link to the whole at this address.

    Raises:
        ReportTooBigError: it would be longer than a report may be.
    """
    return _packed_report({"title": title, "whole": whole}, contents, LIMIT_BYTES)


def report_of_samples(reading: Reading) -> bytes:
    """The file, UTF-8, of a run of many samples that is stored.

    Raises:
        ReportTooBigError: it would be longer than a report may be.
    """
    made = str(reading.facts["created_at"])[:16].replace("T", " ")
    subtitle = f"Report of CriticalKV Lab on study {reading.slug}, made {made} UTC"
    contents = contents_of_samples(reading)
    page = {"title": reading.study.name, "subtitle": subtitle}
    return _packed_report(page, contents, LIMIT_BYTES)


def _packed_report(page: dict[str, Any], contents: Contents, limit_bytes: int) -> bytes:
    """Contents as the file, UTF-8; `page` has its title, and a subtitle or the link of a panel.

    Raises:
        ReportTooBigError: it would be longer.
    """
    packed = {"page": _packed(_page_json(page, contents))}
    packed |= {name: _packed(data) for name, data in contents.files.items()}
    if any(part is RunCharts for each in contents.sections for part, _ in each.shown):
        packed["plotly"] = _plotly()[0]
    script = _script(contents)
    tags = [
        f'<script type="text/plain" data-file="{html.escape(name)}">{data}</script>'
        for name, data in packed.items()
    ]
    text = _PAGE.substitute(
        policy=_POLICY.format(scripts=" ".join((_hash(script.encode()), _plotly()[1]))),
        style=_style(),
        files="\n".join(tags),
        script=script,
    )
    data = text.encode()
    if len(data) > limit_bytes:
        raise ReportTooBigError(
            f"The report of this run would take {len(data) / MIB:.1f} MiB and may take "
            f"{limit_bytes / MIB:.1f} MiB; export it as a bundle or JSON."
        )
    return data


def _page_json(page: dict[str, Any], contents: Contents) -> bytes:
    sections = [
        {
            "name": section.name,
            "heading": section.heading,
            "text": section.text,
            "components": [
                {"component": {"name": each.name, "module": each.module}, "value": value}
                for each, value in section.shown
            ],
        }
        for section in contents.sections
    ]
    return json.dumps({**page, "sections": sections}).encode()


def _script(contents: Contents) -> str:
    """The modules of the components that are shown, then the page's own, which draws them."""
    used = {component.module for section in contents.sections for component, _ in section.shown}
    return joined([*sorted(used), "ui/report/report.js"])


@functools.cache
def _style() -> str:
    """The theme's variables without its fonts, which are files, and the style sheets."""
    _, rules, theme = build_theme()._get_theme_css().partition(":root {")  # type: ignore[no-untyped-call]
    return "\n".join([rules + theme, *(path.read_text("utf-8") for path in _STYLES)])


@functools.cache
def _plotly() -> tuple[str, str]:
    """The chart library packed as the other files, and its hash."""
    packed = packed_plotly()
    return base64.b64encode(packed).decode(), _hash(gzip.decompress(packed))


def _packed(data: bytes) -> str:
    # Level 6 takes four times as long on kept bits, for 2 % less.
    return base64.b64encode(gzip.compress(data, 4, mtime=0)).decode()


def _hash(script: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
