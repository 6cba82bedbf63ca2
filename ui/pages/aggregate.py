"""The Aggregate page: several stored runs of one model, taken together over their prompts."""

import re
from typing import Any

import gradio as gr
import plotly.graph_objects as go
from gradio.components import Component

from ckv_core.errors import CkvError, ConfigError
from ckv_core.metrics.intervals import Interval
from ui.aggregate import FIGURES, MAX_RUNS, Aggregate, Member, aggregate
from ui.charts.aggregate import mean_figure, win_figure
from ui.charts.layout import empty_figure
from ui.components.data_table import DataTable
from ui.components.plot_files import plot_with_files
from ui.pages.live import find_run
from ui.pages.parts import Notice, said
from ui.routes import is_slug
from ui.services import Services

PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
INTRO = (
    "## Several runs together\n"
    "Means over prompts with 95 % bootstrap intervals, for the variants that all chosen runs have. "
    "Runs of different models have no common scale and are refused."
)
SHOW_ADDRESS = """(text) => {
  const ids = text.split(/[\\s,]+/).filter(Boolean).join(",");
  const url = new URL(location.href);
  url.searchParams.set("ids", ids);
  history.replaceState(null, "", url);
  return [text];
}"""


class AggregatePage:
    """The page's components and what happens on them."""

    def __init__(self, services: Services) -> None:
        """Lay out the page; call inside its route."""
        self._services = services
        gr.Markdown(INTRO, elem_classes=["section"])
        with gr.Row(equal_height=False):
            self.ids = gr.Textbox(
                label="Runs",
                info=f"Their names, with commas; up to {MAX_RUNS}.",
                elem_id="aggregate-ids",
                scale=4,
                lines=1,
                max_lines=4,
            )
            self.show = gr.Button("Show", variant="primary", elem_id="aggregate-show", scale=0)
        self.notice = Notice(elem_id="aggregate-notice")
        with gr.Column(visible=False, elem_id="aggregate-results") as self.area:
            self.table = DataTable(elem_id="aggregate-table")
            with gr.Row():
                self.charts = [
                    plot_with_files(each.label, f"chart-mean-{each.key}")
                    for each in FIGURES.values()
                ]
            self.choice: Any = gr.Dropdown(
                [], label="Head win map of", visible=False, elem_id="aggregate-wins"
            )
            self.wins = plot_with_files("Head win map", "chart-wins")

    @property
    def _outputs(self) -> list[Component]:
        return [self.notice, self.table, *self.charts, self.choice, self.wins]

    def wire(self, page: gr.Blocks) -> None:
        """Connect the address, the button and the choice."""
        outputs: list[Any] = [self.area, *self._outputs]
        page.load(self.open, None, [self.ids, *outputs], queue=False, **PRIVATE)
        gr.on(
            [self.show.click, self.ids.submit],
            self.present,
            [self.ids],
            outputs,
            queue=False,
            js=SHOW_ADDRESS,
            **PRIVATE,
        )
        self.choice.input(self.pick, [self.ids, self.choice], [self.wins], queue=False, **PRIVATE)

    def open(self, request: gr.Request) -> list[Any]:
        """What the address asks for: /aggregate?ids=a,b,c."""
        text = request.query_params.get("ids", "") if request else ""
        if not text.strip():
            told = said("Select runs on the Runs page, or type their names here.")
            return ["", gr.update(visible=False), told, *[gr.skip()] * (len(self._outputs) - 1)]
        return [text, *self.present(text)]

    def present(self, text: str) -> list[Any]:
        """The chosen runs together, or one sentence on why not."""
        try:
            found = self._load(text)
        except CkvError as error:
            skipped = [gr.skip()] * (len(self._outputs) - 1)
            return [gr.update(visible=False), said(str(error), "error"), *skipped]
        summary = f"{found.n} prompts, {len(found.members)} variants, {found.model}."
        winners = [(member.label, at) for at, member in enumerate(found.members) if member.wins]
        first = winners[0][1] if winners else None
        return [
            gr.update(visible=True),
            said(" ".join([summary, *found.notes]), "warn" if found.notes else ""),
            means_table(found),
            *(mean_figure(found, figure) for figure in FIGURES.values()),
            gr.update(choices=_told_apart(found, winners), value=first, visible=len(winners) > 1),
            _win_update(found, first),
        ]

    def pick(self, text: str, index: object) -> Any:
        """The win map of another variant."""
        try:
            return _win_update(self._load(text), index)
        except CkvError:
            return gr.skip()

    def _load(self, text: str) -> Aggregate:
        slugs = read_slugs(text)
        return aggregate([find_run(self._services, slug) for slug in slugs])


def read_slugs(text: object) -> list[str]:
    """The names of a list, each once.

    Raises:
        ConfigError: one cannot name a run, or there are too many.
    """
    parts = re.split(r"[\s,]+", text) if isinstance(text, str) else []
    slugs = list(dict.fromkeys(filter(None, parts)))
    if len(slugs) > MAX_RUNS:
        raise ConfigError(f"{len(slugs)} runs are too many; take up to {MAX_RUNS} together.")
    for slug in slugs:
        if not is_slug(slug):
            raise ConfigError(f"{slug[:40]!r} is not the name of a run.")
    return slugs


def means_table(found: Aggregate) -> dict[str, Any]:
    """Value of the DataTable: one row per variant; the file has the intervals' ends too."""
    known = [f for f in FIGURES.values() if any(f.key in m.figures for m in found.members)]
    columns: list[dict[str, Any]] = [
        {"key": "variant", "label": "Variant", "align": "left"},
        {"key": "spec", "label": "SPEC", "align": "left"},
        {"key": "n", "label": "n", "unit": "prompts"},
    ]
    for figure in known:
        columns.append({"key": figure.key, "label": figure.label, "unit": figure.unit})
        columns += [
            {"key": f"{figure.key}_{end}", "label": f"{figure.label} {end}", "hidden": True}
            for end in ("low", "high")
        ]
    columns.append({"key": "wins", "label": "Heads won", "unit": "of the means"})
    return {
        "caption": "Means over the prompts",
        "columns": columns,
        "rows": [
            {"marker": at, "cells": _cells(member, found.n)}
            for at, member in enumerate(found.members)
        ],
        "note": "Mean, and 95 % bootstrap interval (BCa) over prompts. Heads won: query heads "
        "whose mean L1 over the prompts is below that of the same variant without CriticalKV.",
        "file": "aggregate.csv",
    }


def _cells(member: Member, n: int) -> dict[str, Any]:
    cells: dict[str, Any] = {
        "variant": {"text": member.label},
        "spec": {"text": member.spec},
        "n": {"text": str(n), "value": n},
    }
    for key, found in member.figures.items():
        text = _shown(found, is_share=FIGURES[key].is_share)
        text += "" if found.n == n else f", n = {found.n}"
        cells[key] = {"text": text, "value": found.mean}
        cells[f"{key}_low"], cells[f"{key}_high"] = {"value": found.low}, {"value": found.high}
    if member.wins and member.wins.heads:
        wins, heads = member.wins.wins, member.wins.heads
        cells["wins"] = {"text": f"{wins:,} of {heads:,} ({wins / heads:.1%})", "value": wins}
    return cells


def _shown(found: Interval, *, is_share: bool) -> str:
    def text(value: float) -> str:
        return f"{value:.1%}" if is_share else f"{value:,.4g}"

    if found.low is None or found.high is None:
        return text(found.mean)
    return f"{text(found.mean)} ({text(found.low)} to {text(found.high)})"


def _told_apart(found: Aggregate, winners: list[tuple[str, int]]) -> list[tuple[str, int]]:
    labels = [label for label, _ in winners]
    return [
        (label if labels.count(label) == 1 else found.members[at].spec, at) for label, at in winners
    ]


def _win_update(found: Aggregate, index: object) -> go.Figure:
    if isinstance(index, int) and 0 <= index < len(found.members):
        member = found.members[index]
        if member.wins is not None:
            return win_figure(member.spec, member.wins)
    return empty_figure("Head win map", "No variant with CriticalKV to set against its base.")
