"""What a report shows and the files it carries: sections of components with their values."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from ckv_core.errors import ConfigError
from storage.records import RunNotes
from ui.charts.catalog import figure_of
from ui.components.base import Scripted
from ui.components.data_table import DataTable
from ui.components.facts import Facts
from ui.components.generations import FollowUpAnswers, Generations
from ui.components.kept_tokens import KeptTokens
from ui.components.run_charts import RunCharts
from ui.components.verdict import VerdictStrip
from ui.looks.glossary import without_marks
from ui.report.charts import chart_figures, embedded_charts
from ui.results import block as results
from ui.results import views
from ui.results.cards import follow_ups_value, generations_value, teacher_forced_value
from ui.results.chart_views import alphas_value, curves_value, diagnostics_value, perturbation_value
from ui.services.live_runs import RunSnapshot
from ui.tables.summary import summary_value
from ui.tables.sweep import points_table, savings_table

Group = Literal["kept", "charts", "strips"]
GROUPS: dict[Group, str] = {
    "kept": "kept tokens and prompt",
    "charts": "charts",
    "strips": "fidelity strips",
}
NO_GROUP = f"A report can be made without {', '.join(GROUPS)}; name some of these."
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

    sections: list[Section] = field(default_factory=list)
    files: dict[Group, dict[str, bytes]] = field(default_factory=dict)


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
    contents = Contents()
    if (verdict := views.verdict_value(run)) is not None:
        contents.sections.append(Section("verdict", "Outcome", "", [(VerdictStrip, verdict)]))
    if run.request.kind == "sweep":
        _add_sweep(contents, run, without)
    else:
        table = summary_value(run.result, ended=True)
        section = Section("summary", *headed(results.RECEIPT_TEXT), [(DataTable, table)])
        contents.sections.append(section)
        _add_generations(contents, run, without)
        _add_kept(contents, run, without)
        _add_measured(contents, run, without)
    facts: Shown = [(Facts, _facts(run, notes, without))]
    contents.sections.append(Section("run", "Settings and environment", "", facts))
    return contents


def _add_generations(contents: Contents, run: RunSnapshot, without: Collection[Group]) -> None:
    value = generations_value(run)
    strips: dict[str, bytes] = {}
    for card in value["cards"] if value else []:
        address = card["forced"]
        if address is None:
            continue
        if "strips" in without:
            card["forced"] = None
        else:
            strips[address] = _json(teacher_forced_value(run.result, card["index"]))
    contents.files["strips"] = strips
    shown: Shown = [(Generations, value), (FollowUpAnswers, follow_ups_value(run))]
    contents.sections.append(Section("generations", *headed(results.GENERATIONS_TEXT), shown))


def _add_kept(contents: Contents, run: RunSnapshot, without: Collection[Group]) -> None:
    value, prompt = views.kept_value(run), run.result.prompt
    heading, text = headed(results.KEPT_TEXT)
    if "kept" in without:
        contents.sections.append(Section("kept", heading, LEFT_OUT))
        return
    contents.sections.append(Section("kept", heading, text, [(KeptTokens, value)]))
    if value is None or prompt is None:
        return
    base = f"{value['base']}/{run.slug}"
    contents.files["kept"] = files = {f"{base}/prompt": _json(views.prompt_value(prompt))}
    for index, variant in enumerate(run.result.variants):
        if variant.retained is not None:
            files[f"{base}/{index}/retained"] = variant.retained.bits
        if variant.held is not None:
            files[f"{base}/{index}/evicted"] = variant.held.evicted


def _add_measured(contents: Contents, run: RunSnapshot, without: Collection[Group]) -> None:
    section = Section("perturbation", *headed(results.PERTURBATION_TEXT))
    _add_charts(contents, run, without, section, perturbation_value)
    section = Section("diagnostics", "Diagnostics", "")
    _add_charts(contents, run, without, section, diagnostics_value)


def _add_sweep(contents: Contents, run: RunSnapshot, without: Collection[Group]) -> None:
    section = Section("curves", *headed(results.CURVES_TEXT))
    _add_charts(contents, run, without, section, curves_value)
    shown: Shown = [(DataTable, savings_table(run.result, 0))]
    contents.sections.append(Section("savings", *headed(results.SAVINGS_TEXT), shown))
    section = Section("alphas", *headed(results.ALPHA_TEXT))
    _add_charts(contents, run, without, section, alphas_value)
    shown = [(DataTable, points_table(run.result, run.request.answer))]
    contents.sections.append(Section("points", *headed(results.POINTS_TEXT), shown))


def _add_charts(
    contents: Contents,
    run: RunSnapshot,
    without: Collection[Group],
    section: Section,
    value_of: Callable[[RunSnapshot], Value],
) -> None:
    """Append the section with its charts; nothing where the run has no such charts."""
    value = value_of(run)
    if value is None:
        return
    if "charts" in without:
        contents.sections.append(replace(section, text=LEFT_OUT))
        return
    value, words = embedded_charts(value)
    text = f"{section.text} {words}".strip()
    contents.sections.append(replace(section, text=text, shown=[(RunCharts, value)]))
    contents.files.setdefault("charts", {}).update(
        chart_figures(partial(figure_of, run.result), value)
    )


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


def headed(markdown: str) -> tuple[str, str]:
    """Heading and words of a section's text on the pages."""
    heading, _, words = without_marks(markdown).removeprefix("### ").partition("\n")
    return heading, words


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
