"""The results block of a sweep, and what feeds it; the Sweep and the Run page share it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import gradio as gr
import numpy as np
from gradio.components import Component

from ckv_core.errors import CkvError
from ckv_core.events import RunResult
from ckv_core.sweep_reading import FIGURES, AlphaOptimum, alpha_optima, curves
from ui import views
from ui.charts.sweep import alpha_head_figure, alpha_layer_figure, curve_figure
from ui.components.data_table import DataTable
from ui.components.plot_files import plot_with_files
from ui.components.status_bar import StatusBar
from ui.pages.live import Feed
from ui.pages.parts import SILENT, Notice, RunLinks, said
from ui.routes import is_slug
from ui.services import RunSnapshot, Services
from ui.sweep_tables import curve_name, method_name, points_table, savings_table

CURVES_TEXT = (
    "### Quality against the budget\n"
    "Each line is a method with one alpha. The dotted line is the full cache."
)
SAVINGS_TEXT = (
    "### Budget savings\n"
    "How many entries a method needs to be as close to the full cache as another one."
)
ALPHA_TEXT = (
    "### Which alpha\n"
    "The alpha, of those tried, that moves the attention outputs least. It is chosen by looking at "
    "the outcome, so the gain is an upper limit for any rule that picks an alpha per head."
)
POINTS_TEXT = "### All points\nClick a column's name to sort."


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepBlock:
    """The built components.

    Attributes:
        area: holds everything but the status bar; hidden until there is a run.
        outputs: all that a feed writes, in its order; the status bar is the first.
        reference: whose quality is matched in the table of savings.
        savings: that table.
        alpha_choice: which method and budget the alpha charts show.
        alpha_charts: the notice and the two charts.
    """

    area: gr.Column
    outputs: list[Component]
    reference: Any
    savings: Component
    alpha_choice: Any
    alpha_charts: list[Component]

    def wire(self, services: Services, slug: Component) -> None:
        """Connect the two choices; `slug` names the run that is shown."""
        options: dict[str, Any] = {
            "queue": False,
            "api_visibility": "private",
            "show_progress": "hidden",
        }

        def savings(name: object, reference: object) -> Any:
            result = _find(services, name)
            return gr.skip() if result is None else savings_table(result, reference)

        def alphas(name: object, index: object) -> list[Any]:
            result = _find(services, name)
            return [gr.skip()] * 3 if result is None else alpha_values(result, index)

        self.reference.input(savings, [slug, self.reference], [self.savings], **options)
        self.alpha_choice.input(alphas, [slug, self.alpha_choice], self.alpha_charts, **options)


def build_sweep_results(*, visible: bool, status: Component | None = None) -> SweepBlock:
    """Lay out an empty block; call inside a Blocks context.

    Args:
        visible: whether it shows.
        status: the page's status bar; None makes one.
    """
    bar = status or StatusBar(elem_id="status")
    with gr.Column(visible=visible, elem_id="sweep-results") as area:
        gr.HTML("<h2>Results of the sweep</h2>", elem_classes=["bare", "offscreen"])
        links = RunLinks(elem_id="sweep-links")
        gr.Markdown(CURVES_TEXT, elem_classes=["section"])
        with gr.Row():
            plots = [
                plot_with_files(figure.label, f"chart-sweep-{figure.key}")
                for figure in FIGURES.values()
            ]
        gr.Markdown(SAVINGS_TEXT, elem_classes=["section"])
        reference = gr.Dropdown(
            [], label="Match the quality of", visible=False, elem_id="sweep-reference"
        )
        savings = DataTable(elem_id="sweep-savings")
        alpha_choice, alpha_charts = _build_alphas()
        gr.Markdown(POINTS_TEXT, elem_classes=["section"])
        points = DataTable(elem_id="sweep-points")
    outputs: list[Component] = [bar, links, points, *plots, reference, savings]
    return SweepBlock(
        area=area,
        outputs=[*outputs, alpha_choice, *alpha_charts],
        reference=reference,
        savings=savings,
        alpha_choice=alpha_choice,
        alpha_charts=alpha_charts,
    )


class SweepFeed(Feed):
    """Remembers what one viewer was sent; charts are drawn once all points are measured."""

    def __init__(self, block: SweepBlock) -> None:
        self._sweep = block
        self._sent: dict[str, Any] = {}

    @property
    def width(self) -> int:
        """How many updates there are at a time."""
        return len(self._sweep.outputs)

    def updates(self, snapshot: RunSnapshot, now: datetime) -> list[Any]:
        """One update per output of the block, in its order."""
        result = snapshot.result
        values = {
            "status": views.status_value(snapshot, now),
            "links": {"slug": snapshot.slug, "files": bool(result.variants), "kind": "sweep"},
            "points": points_table(result),
        }
        updates = [self._changed(name, value) for name, value in values.items()]
        measured = sum(v.perturbation is not None for v in result.variants)
        wanted = sum(v.method != "full" for v in result.variants)
        ready = measured > 0 and (snapshot.is_final or measured == wanted)
        judged = sum(v.agreement is not None for v in result.variants)
        key = (snapshot.slug, measured, judged) if ready else None
        if "charts" in self._sent and self._sent["charts"] == key:
            return [*updates, *[gr.skip()] * (self.width - len(updates))]
        self._sent["charts"] = key
        return [*updates, *(_chart_values(result) if ready else self._nothing())]

    def _nothing(self) -> list[Any]:
        hidden = gr.update(visible=False)
        return [*[None] * len(FIGURES), hidden, None, hidden, SILENT, None, None]


class EitherFeed(Feed):
    """Feeds the block of comparisons or that of sweeps on a page that has both.

    The blocks share one status bar, so the sweep's first output is the other block's.
    """

    def __init__(self, compare: Feed, sweep: SweepFeed) -> None:
        self._compare = compare
        self._sweeps = sweep

    @property
    def width(self) -> int:
        """How many updates there are at a time."""
        return self._compare.width + self._sweeps.width - 1

    def updates(self, snapshot: RunSnapshot, now: datetime) -> list[Any]:
        """Updates of the comparison's block, then of the sweep's without its status."""
        if snapshot.request.kind == "sweep":
            status, *rest = self._sweeps.updates(snapshot, now)
            return [status, *[gr.skip()] * (self._compare.width - 1), *rest]
        skipped = [gr.skip()] * (self._sweeps.width - 1)
        return [*self._compare.updates(snapshot, now), *skipped]


def alpha_values(result: RunResult, index: object) -> list[Any]:
    """Values of `SweepBlock.alpha_charts` for one method and budget; empty where there is none."""
    optima = alpha_optima(result)
    if not isinstance(index, int) or not 0 <= index < len(optima):
        return [SILENT, None, None]
    chosen = optima[index]
    return [said(gain_sentence(chosen)), alpha_layer_figure(chosen), alpha_head_figure(chosen)]


def gain_sentence(optimum: AlphaOptimum) -> str:
    """What a per-head alpha could gain, with its definition and n."""
    heads = int((~np.isnan(optimum.head_alpha)).sum())
    tried = ", ".join(f"{alpha:g}" for alpha in optimum.alphas)
    return (
        f"{_optimum_name(optimum)}: with the best of alpha {tried} for each of n = {heads:,} KV "
        f"heads, the mean head L1 would be {optimum.head_gain:.1%} below that of the best fixed "
        f"alpha, {optimum.best_fixed:g}."
    )


def _optimum_name(optimum: AlphaOptimum) -> str:
    return f"{method_name(optimum.spec)}, budget {optimum.budget:,}"


def _build_alphas() -> tuple[Any, list[Component]]:
    gr.Markdown(ALPHA_TEXT, elem_classes=["section"])
    choice = gr.Dropdown([], label="Method and budget", visible=False, elem_id="sweep-alpha")
    gain = Notice(elem_id="sweep-gain")
    with gr.Row():
        layers = plot_with_files("Alpha by layer", "chart-alpha-layers")
        heads = plot_with_files("Alpha by head", "chart-alpha-heads")
    return choice, [gain, layers, heads]


def _chart_values(result: RunResult) -> list[Any]:
    """Curves, savings and alphas, in the order of the block."""
    plots = [curve_figure(result, figure) for figure in FIGURES.values()]
    names = [(curve_name(curve), at) for at, curve in enumerate(curves(result))]
    optima = alpha_optima(result)
    choices = [(_optimum_name(optimum), at) for at, optimum in enumerate(optima)]
    nothing = said("Two alphas at one budget are needed to compare them; this sweep has none.")
    return [
        *plots,
        gr.update(choices=names, value=0 if names else None, visible=len(names) > 1),
        savings_table(result, 0),
        gr.update(choices=choices, value=0 if choices else None, visible=bool(choices)),
        *(alpha_values(result, 0) if optima else [nothing, None, None]),
    ]


def _find(services: Services, slug: object) -> RunResult | None:
    if not is_slug(slug):
        return None
    try:
        return services.snapshot(str(slug)).result
    except CkvError:
        return None
