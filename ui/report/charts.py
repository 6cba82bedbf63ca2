"""Charts of a report: every figure that their choices lead to, drawn ahead and cut to a number."""

import itertools
import json
import math
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import plotly.graph_objects as go

from ui.charts.chart import Choices

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
