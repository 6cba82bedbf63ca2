"""The results of a run, of one sample or many: all that a feed writes on the Run page."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import gradio as gr
from gradio.components import Component

from storage.models import SAMPLES
from ui.components.base import (
    Answers,
    DataTable,
    Fold,
    FollowUpAnswers,
    KeptTokens,
    NextSteps,
    RunCharts,
    RunTabs,
    VerdictStrip,
    fold_column,
    words_of,
)
from ui.results import samples_area, sweep_area
from ui.results.next_steps import searching
from ui.services.services import Services
from ui.shell.parts import AT_ONCE

FIGURES_TEXT = (
    "### All figures\n"
    "Memory used and output quality of each method, beside the [[full cache]]. The ? at a column "
    "says what it means."
)
KEPT_TEXT = (
    "### Kept tokens\n"
    "Each map shows all layers (top to bottom) and the whole prompt (left to right). More colour "
    "means more [[KV head|KV heads]] keep it. A line marks the expected answer, where one is given."
)
PERTURBATION_TEXT = (
    "### Perturbation at the first decoding step\n"
    "How far eviction moves the model's state before a token is chosen, as [[L1]]. Lower is "
    "closer to the full cache. Head outputs are [[isolated]], hidden states [[cascaded]]. Ratios "
    "are to the method's own [[base]]. A single head and the whole model may disagree. Ignore "
    "differences below the [[rounding floor]]."
)
DIAGNOSTICS_TEXT = (
    "### Diagnostics\n"
    "The paper's quantities on this prompt. Oracles see the true attention: they show what a "
    "method could reach. The theory needs a [[sigma]] over one half in stage 1. The bounds "
    "([[theta]]) are drawn beside the measured distance. n is the heads of one prompt at one "
    "decoding step."
)

RESULTS = ["ckv-results"]
# Of an area that is built with the page, though not seen: what comes for a component while Gradio
# builds it may be lost. (A column of Gradio's shows what is to be "hidden".)
UNSEEN = "ckv-unseen"


# By kind of run: id and heading of the area with its results.
AREAS = {
    "compare": ("results", "Results"),
    "sweep": ("sweep-results", "Results at several budgets"),
    SAMPLES: ("study-results", "Results of many samples"),
}


# Area (none for what stands above all), name, id, component and text of all that a feed writes. A
# `Fold` closes what follows it in its area, up to the next one.
PARTS: tuple[tuple[str, str, str, Callable[..., Component], str], ...] = (
    ("", "verdict", "verdict", VerdictStrip, ""),
    ("", "tabs", "tabs", RunTabs, ""),
    ("compare", "answers", "answers", Answers, ""),
    ("compare", "steps", "next-steps", NextSteps, ""),
    ("compare", "follow_ups", "follow-ups", FollowUpAnswers, ""),
    ("compare", "kept", "kept", KeptTokens, KEPT_TEXT),
    ("compare", "sampled_line", "sampled-line", Fold, ""),
    ("compare", "sampled", "sampled", DataTable, ""),
    ("compare", "charts_line", "charts-line", Fold, ""),
    ("compare", "charts", "charts", RunCharts, words_of(PERTURBATION_TEXT)),
    ("compare", "diagnostics_line", "diagnostics-line", Fold, ""),
    ("compare", "diagnostics", "diagnostics", RunCharts, words_of(DIAGNOSTICS_TEXT)),
    ("compare", "figures_line", "figures-line", Fold, ""),
    ("compare", "summary", "summary", DataTable, words_of(FIGURES_TEXT)),
    ("compare", "memory", "memory", RunCharts, ""),
)
OUTPUTS = (*(name for _, name, *_ in PARTS), *sweep_area.OUTPUTS, *samples_area.OUTPUTS)


def shown_areas(kind: str) -> list[Any]:
    """Updates of the areas: that of this kind of run is seen."""
    return [
        gr.update(elem_classes=RESULTS if name == kind else [*RESULTS, UNSEEN]) for name in AREAS
    ]


class ResultsBlock:
    """The components, empty and not seen; made inside a Blocks context.

    Attributes:
        areas: one of each kind of run; the verdict and the tabs stand above.
        outputs: everything that a feed writes, by name.
    """

    def __init__(self) -> None:
        self.outputs = _built("")
        self.areas: list[gr.Column] = []
        for kind, (elem_id, heading) in AREAS.items():
            with gr.Column(elem_id=elem_id, elem_classes=[*RESULTS, UNSEEN]) as column:
                # The sections' headings come one level below it.
                gr.HTML(f"<h2>{heading}</h2>", elem_classes=["bare", "ckv-offscreen"])
                self.outputs |= self._built(kind)
            self.areas.append(column)

    def wire(self, services: Services, slug: Component) -> None:
        """What is closed is read when it is opened; a next step starts a run."""
        self._sweep.wire(services, slug)
        steps: Any = self.outputs["steps"]
        steps.find(searching(services), [slug], [steps], **AT_ONCE)

    def _built(self, kind: str) -> dict[str, Component]:
        if kind == SAMPLES:
            return samples_area.build_samples()
        if kind == "sweep":
            self._sweep = sweep_area.SweepArea()
            return self._sweep.outputs
        return _built(kind)


def _built(kind: str) -> dict[str, Component]:
    """The components of an area; on a phone each belongs to one of three tabs."""
    found: dict[str, Component] = {}
    with ExitStack() as folds:
        tab = "answers"
        for area, name, elem_id, make, text in PARTS:
            if area != kind:
                continue
            if make is Fold:
                tab = "more"
                folds.close()
                folds.enter_context(fold_column())
            at = "kept" if make is KeptTokens else tab
            classes = [f"ckv-tab-{at}"] if kind else []
            found[name] = make(elem_id=elem_id, section=text, elem_classes=classes)
    return found
