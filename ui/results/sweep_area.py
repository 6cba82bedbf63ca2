"""The results at several budgets: grid, chosen cell, kept tokens, and what is read when opened."""

from collections.abc import Callable
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.errors import CkvError
from ckv_core.experiment.sweep import (
    curves,
    sweep_points,
    sweep_savings,
)
from ui.components.base import (
    ChosenCell,
    DataTable,
    Fold,
    KeptTokens,
    NextSteps,
    OutcomeGrid,
    RunCharts,
    fold_column,
    section_html,
    words_of,
)
from ui.results import views
from ui.results.grid import chosen_value, grid_value, points_kept_value
from ui.results.next_steps import next_value
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.shell.parts import AT_ONCE
from ui.tables.points import sampled_value, sweep_value

CURVES_TEXT = (
    "### Quality against budget\n"
    "Each line is a method with one [[alpha]]. The dotted line is the "
    "[[full cache]]. Pink lines with open markers are [[oracle|oracles]]: they see the true "
    "attention, which no method does."
)
SAVINGS_TEXT = (
    "### Budget savings\n"
    "The budget that a method needs to be as close to the full cache as another one."
)
POINTS_TEXT = "### All points\nClick the name of a column to sort by it."
POINT_KEPT_TEXT = (
    "### Kept tokens\n"
    "What each method keeps at the chosen budget. Each map shows all layers (top to bottom) and "
    "the whole prompt (left to right); more colour means more [[KV head|KV heads]] keep it."
)
# Name, id, component and text of all that a feed writes; then the sections that are closed.
_FIRST: tuple[tuple[str, str, Callable[..., Component], str], ...] = (
    ("grid", "grid", OutcomeGrid, ""),
    ("further", "sweep-next", NextSteps, ""),
    ("chosen", "chosen-cell", ChosenCell, ""),
    ("point_kept", "point-kept", KeptTokens, POINT_KEPT_TEXT),
)
QUALITY_LINE = {"title": "Quality against budget", "hint": "curves, and how much budget is saved"}
POINTS_LINE = {"title": "All points", "hint": "every metric of every method and budget, and CSV"}
SAMPLED_LINE = {"title": "Sampled texts", "hint": "what each method wrote, and how often"}
_SECTIONS = ("quality", "all_points", "all_sampled")
OUTPUTS = (*(name for name, *_ in _FIRST), *_SECTIONS)


class SweepArea:
    """The components, empty; made inside a Blocks context.

    Attributes:
        outputs: all that a feed writes, by name.
    """

    def __init__(self) -> None:
        self.outputs: dict[str, Any] = {
            name: make(
                elem_id=at,
                section=text,
                elem_classes=["ckv-tab-kept" if make is KeptTokens else "ckv-tab-answers"],
            )
            for name, at, make, text in _FIRST
        }
        with fold_column():
            self.outputs["quality"] = Fold(elem_id="sweep-quality")
            self._curves = RunCharts(elem_id="sweep-curves", section=words_of(CURVES_TEXT))
            gr.HTML(section_html(SAVINGS_TEXT), elem_id="sweep-savings-head", elem_classes=["bare"])
            self._matched = gr.Dropdown(
                [], label="Match the quality of", visible=False, elem_id="sweep-reference"
            )
            self._savings = DataTable(elem_id="sweep-savings")
        with fold_column():
            self.outputs["all_points"] = Fold(elem_id="sweep-all-points")
            self._points = DataTable(elem_id="sweep-points", section=words_of(POINTS_TEXT))
        with fold_column():
            self.outputs["all_sampled"] = Fold(elem_id="sweep-all-sampled")
            self._sampled = DataTable(elem_id="sweep-sampled")

    def wire(self, services: Services, slug: Component) -> None:
        """Each section is filled when it is opened; savings follow the line to be matched."""

        def reading(read: Callable[..., list[Any]], outputs: int) -> Callable[..., Any]:
            def handler(name: object, *more: object) -> Any:
                try:
                    found = read(services.snapshot(str(name)), *more)
                except CkvError:
                    found = [gr.skip()] * outputs
                return found if outputs > 1 else found[0]

            return handler

        matched = self._matched
        quality, all_points, all_sampled = (self.outputs[name].expand for name in _SECTIONS)
        events: list[tuple[Any, Callable[..., list[Any]], list[Any], list[Any]]] = [
            (quality, _quality, [], [self._curves, matched, self._savings]),
            (all_points, _points, [], [self._points]),
            (all_sampled, _sampled, [], [self._sampled]),
            (matched.input, _savings, [matched], [self._savings]),
        ]
        for event, read, more, outputs in events:
            event(reading(read, len(outputs)), [slug, *more], outputs, **AT_ONCE)


def sweep_values(view: RunSnapshot) -> dict[str, Any]:
    """The area of one sample at several budgets; a section is seen once there is something."""
    is_swept = view.is_final and views.is_swept(view)
    return {
        "grid": grid_value(view),
        "further": next_value(view),
        "chosen": chosen_value(view),
        "point_kept": points_kept_value(view),
        "quality": QUALITY_LINE if is_swept else None,
        "all_points": POINTS_LINE if view.is_final and view.result.variants else None,
        "all_sampled": SAMPLED_LINE if any(v.sampled_texts for v in view.result.variants) else None,
    }


def _quality(view: RunSnapshot) -> list[Any]:
    names = [(curve.first.name, at) for at, curve in enumerate(curves(view.result))]
    return [
        views.curves_value(view),
        gr.update(choices=names, value=0 if names else None, visible=len(names) > 1),
        *_savings(view, 0),
    ]


def _savings(view: RunSnapshot, reference: object) -> list[Any]:
    return [sweep_value(view.result, sweep_savings(view.result, reference))]


def _points(view: RunSnapshot) -> list[Any]:
    return [sweep_value(view.result, sweep_points(view.result, view.request.answer))]


def _sampled(view: RunSnapshot) -> list[Any]:
    return [sampled_value(view.result, view.request.repeats)]
