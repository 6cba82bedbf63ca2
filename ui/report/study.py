"""A study as the HTML report shows it: the answer, tables, charts, samples and settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from ckv_core.studies.records import Sample, SampleResult, Study
from ui.charts.study import STUDY_CHARTS, charts_value
from ui.components.data_table import DataTable
from ui.components.facts import Facts
from ui.components.run_charts import RunCharts
from ui.components.verdict import VerdictStrip
from ui.report.charts import chart_figures, embedded_charts
from ui.report.contents import Contents, Section, headed
from ui.report.report import packed_report
from ui.results import block as page
from ui.tables.study import (
    StudyReading,
    decision_table,
    facts_rows,
    savings_table,
    scores_table,
    tasks_table,
    verdict_value,
)
from ui.tables.study_samples import samples_table


def report_of_study(
    slug: str,
    study: Study,
    samples: Sequence[Sample],
    results: Sequence[SampleResult],
    facts: Mapping[str, Any],
) -> bytes:
    """The file, UTF-8; `facts` are `StoredStudy.facts`.

    Raises:
        ReportTooBigError: it would be longer than a report may be.
    """
    reading = StudyReading(slug, study, samples, results)
    made = str(facts["created_at"])[:16].replace("T", " ")
    subtitle = f"Report of CriticalKV Lab on study {slug}, made {made} UTC"
    return packed_report(study.name, subtitle, _contents(reading, facts))


def _contents(reading: StudyReading, facts: Mapping[str, Any]) -> Contents:
    value, words = embedded_charts(charts_value(reading))
    settings = {"rows": facts_rows(reading, facts)}
    sections = [
        Section("verdict", "The answer", "", [(VerdictStrip, verdict_value(reading))]),
        _table("decision", page.DECISION_TEXT, decision_table(reading)),
        Section("charts", headed(page.CHARTS_TEXT)[0], words, [(RunCharts, value)]),
        _table("scores", page.SCORES_TEXT, scores_table(reading)),
        _table("savings", page.SCORE_SAVINGS_TEXT, savings_table(reading)),
        _table("tasks", page.TASKS_TEXT, tasks_table(reading)),
        _table("samples", page.SAMPLES_TEXT, samples_table(reading)),
        Section("study", "Settings and environment", "", [(Facts, settings)]),
    ]

    def draw(name: str, choices: Mapping[str, str]) -> Any:
        return STUDY_CHARTS[name].figure(reading, choices)

    return Contents(sections, {"charts": chart_figures(draw, value)})


def _table(name: str, text: str, table: dict[str, Any]) -> Section:
    """Without links: a file leads to no page of the app."""
    for row in table["rows"]:
        for cell in row["cells"].values():
            cell.pop("href", None)
    return Section(name, headed(text)[0], "", [(DataTable, table)])
