"""One chart as pages, routes and files know it: its name, its choices, and how it is drawn."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import plotly.graph_objects as go

Choices = Mapping[str, str]
# What is drawn: one run, or several taken together.
Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class Control:
    """One choice of a chart.

    Attributes:
        options: (value, label); the first is the default.
    """

    name: str
    label: str
    options: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart(Generic[Source]):
    """One chart.

    Attributes:
        name: in its address.
        title: for readers of the controls and files.
        csv: table route that holds its data.
        has_data: whether there is anything to draw.
        draw: the source and one valid choice per control -> figure.
        controls: what can be chosen, given the source; a control without options is left out.
    """

    name: str
    title: str
    csv: str
    has_data: Callable[[Source], bool]
    draw: Callable[[Source, Choices], go.Figure]
    controls: Callable[[Source], list[Control]] = lambda _: []

    def offered(self, source: Source) -> list[Control]:
        return [control for control in self.controls(source) if control.options]

    def figure(self, source: Source, choices: Choices) -> go.Figure | None:
        """The chart with these choices, unknown ones left out; None where there is no data."""
        if not self.has_data(source):
            return None
        chosen = {}
        for control in self.offered(source):
            values = [value for value, _ in control.options]
            given = choices.get(control.name, "")
            chosen[control.name] = given if given in values else values[0]
        return self.draw(source, chosen)


def chart_values(charts: Iterable[Chart[Source]], source: Source) -> list[dict[str, Any]]:
    """What the RunCharts component needs of those charts that have data."""
    return [
        {
            "name": chart.name,
            "title": chart.title,
            "csv": chart.csv,
            "controls": list(map(asdict, chart.offered(source))),
        }
        for chart in charts
        if chart.has_data(source)
    ]
