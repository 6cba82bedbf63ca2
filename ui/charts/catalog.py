"""The charts of a run: which there are, what can be chosen in each, and how each is drawn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from ckv_core.experiment.runs import together
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import ARRAYS
from ckv_core.records.records import Float32Array
from ui.charts.ablation import ablation_figure, ablation_steps_of
from ui.charts.bounds import bounds_figure, sigma_figure, tightness_figure
from ui.charts.heads import chosen_alphas_figure, head_grid_figure
from ui.charts.layers import (
    ORACLES,
    budgets_figure,
    entry_counts,
    fidelity_figure,
    final_figure,
    head_layer_figure,
    layer_figure,
    memory_figure,
    read_in_blocks,
)
from ui.charts.layout import Chart, Choices, Control, display_names
from ui.charts.points import points_chart
from ui.tables.csv_text import Cell, csv_text, short
from ui.tables.measured import base_values, floor_values, holders, names_with, values_of
from ui.tables.points import points_csv

Controls = Callable[[RunResult], list[Control]]
_AGAINST = [
    ("ratio", "log2 ratio to its base"),
    ("difference", "difference to its base"),
    ("wins", "lower or higher than its base"),
    ("value", "the value itself"),
]
_LAYER_AGAINST = [
    ("value", "the value itself"),
    ("reduction", "reduction: base minus CriticalKV"),
    ("ratio", "ratio: CriticalKV / base"),
]
_MEASURED = ("distance", "mass", "bound", "oracle")


def figure_of(result: RunResult, name: str, choices: Choices) -> go.Figure | None:
    """One chart with these choices, unknown ones left out; None for no such chart or no data."""
    chart = CHARTS.get(name)
    return None if chart is None else chart.figure(result, choices)


def _variants(*names: str, label: str = "Method") -> Controls:
    """A choice of variants that have one of the arrays; CriticalKV first, others are its bases."""

    def controls(result: RunResult) -> list[Control]:
        indices = sorted({index for name in names for index in holders(result, name)})
        shown = display_names(result.variants, escaped=False)
        ordered = sorted(indices, key=lambda i: not result.variants[i].critical)
        return [Control("variant", label, [(str(i), shown[i]) for i in ordered])] if ordered else []

    return controls


def _quantities(names: Sequence[str]) -> Control:
    return Control("quantity", "Quantity", [(name, ARRAYS[name].label) for name in names])


def _against(result: RunResult, name: str, options: list[tuple[str, str]]) -> list[Control]:
    """No choice where no variant has a base."""
    with_base = [i for i in holders(result, name) if base_values(result, i, name) is not None]
    return [Control("against", "Show", options)] if with_base else []


def _layer_controls(result: RunResult) -> list[Control]:
    names = [n for n in names_with(result, "layer", "distance") if n != "hidden_norm_l1"]
    return [_quantities(names), *_against(result, "hidden_l1", _LAYER_AGAINST)]


def _final_controls(result: RunResult) -> list[Control]:
    left_out = ("hidden_relative", "hidden_norm_l1")
    before = [n for n in names_with(result, "layer", "distance") if n.startswith("hidden_")]
    names = [name for name in before if name not in left_out]
    return [_quantities([*names, *names_with(result, "model", "distance")])]


def _head_controls(result: RunResult) -> list[Control]:
    quantities = _quantities(names_with(result, "head", *_MEASURED))
    against = _against(result, "head_l1", _AGAINST)
    return [*_variants("head_l1")(result), quantities, *against]


def _chart(
    name: str,
    title: str,
    figure: Callable[..., go.Figure],
    needs: str | Callable[[RunResult], object],
    controls: Controls = lambda _: [],
    csv: str = "analysis",
) -> Chart[RunResult]:
    """A chart drawn by a function of the result and the choices, by their names.

    `needs` is the array without which there is nothing to draw, or is true where there is some.
    """

    def draw(result: RunResult, chosen: Choices) -> go.Figure:
        variant = {"variant": int(chosen["variant"])} if "variant" in chosen else {}
        return figure(result, **{**chosen, **variant})

    found = needs if callable(needs) else lambda result: holders(result, needs)
    return Chart(
        name=name,
        title=title,
        csv=csv,
        has_data=lambda result: bool(found(result)),
        draw=draw,
        controls=controls,
    )


_ORACLES = _variants(*(q.key for q in ORACLES), label="Oracles with the head budgets of")
_BOUNDED, _ALPHAS, _SIGMAS = map(_variants, ("theta", "head_alpha", "sigma_stage1"))
_PERTURBATION = (
    _chart("layers", "Layer by layer", layer_figure, "head_l1", _layer_controls),
    _chart("final", "After the last layer", final_figure, "head_l1", _final_controls),
    _chart("heads", "Head by head", head_grid_figure, "head_l1", _head_controls),
    _chart(
        "budgets",
        "Entries kept per layer",
        budgets_figure,
        lambda result: [variant for variant in result.variants if variant.retained],
    ),
    _chart("alphas", "Alpha of each KV head", chosen_alphas_figure, _ALPHAS, _ALPHAS),
    _chart("ablation", "Ablation", ablation_figure, ablation_steps_of, csv="ablation"),
    _chart(
        "fidelity", "Fidelity on the full cache's text", fidelity_figure, "forced_kl", csv="forced"
    ),
)
_DIAGNOSTICS = (
    _chart("oracles", "Methods against oracles", head_layer_figure, _ORACLES, _ORACLES),
    _chart("sigma", "Attention mass of stage 1", sigma_figure, _SIGMAS, _SIGMAS),
    _chart("bounds", "Bounds of the head L1", bounds_figure, "theta", _BOUNDED, "bounds"),
    _chart("tightness", "Tightness of the bound", tightness_figure, "theta", csv="bounds"),
)
_CURVES: Chart[RunResult] = points_chart("sweep", "sweep", lambda result: together([result]))
SWEEP_CURVES = (
    replace(_CURVES, has_data=lambda result: result.kind == "sweep" and _CURVES.has_data(result)),
)
MEMORY = "memory"
_MEMORY = _chart(
    MEMORY, "Memory while the prompt is read", memory_figure, read_in_blocks, csv=MEMORY
)
PERTURBATION = tuple(chart.name for chart in _PERTURBATION)
DIAGNOSTICS = tuple(chart.name for chart in _DIAGNOSTICS)
_ALL = (*_PERTURBATION, *_DIAGNOSTICS, _MEMORY, *SWEEP_CURVES)
CHARTS: dict[str, Chart[RunResult]] = {chart.name: chart for chart in _ALL}


# --- the data behind them ---------------------------------------------------------------

_FORCED = ("forced_kl", "forced_rank", "forced_top1")  # of each step of the full cache's text
_PLACES = {
    "head": ("layer", "query_head"),
    "kv_head": ("layer", "kv_head"),
    "layer": ("layer",),
    "model": (),
    "step": ("step",),
}
_PLACE_COLUMNS = ("layer", "query_head", "kv_head", "step")
_HEAD = ("variant", "spec", "quantity", "unit", *_PLACE_COLUMNS, "value")


def teacher_forced_csv(result: RunResult) -> str:
    """Candidates at each step of the full cache's continuation, best first.

    What was measured of a whole step stands in each of its lines; empty where it was not.
    """
    candidate = ("cache", "rank", "token_id", "token", "probability")
    return csv_text(("variant", "spec", "step", *_FORCED, *candidate), _candidates(result))


def follow_ups_csv(result: RunResult) -> str:
    """Answers to follow-up questions: one line per variant and question."""
    of_answer = ("question", "text", "stopped", "agreement", "first_difference")
    return csv_text(
        ("variant", "spec", *of_answer),
        (
            (index, variant.spec, *(getattr(answer, name) for name in of_answer))
            for index, variant in enumerate(result.variants)
            for answer in variant.follow_ups
        ),
    )


def analysis_csv(result: RunResult) -> str:
    """Every measured value and kept entry, a line each; a place that does not apply is empty."""
    return csv_text(_HEAD, _rows(result))


def sweep_csv(result: RunResult) -> str:
    """Every metric of every point: a line per value."""
    return points_csv(together([result]))


def _candidates(result: RunResult) -> Iterator[tuple[Cell, ...]]:
    for index, variant in enumerate(result.variants):
        arrays = [variant.analysis.get(name) for name in _FORCED]
        for at, step in enumerate(variant.forced_steps):
            measured = [None if array is None else short(array[at]) for array in arrays]
            for cache, candidates in (("full", step.reference), ("variant", step.variant)):
                for rank, token in enumerate(candidates, 1):
                    words = (token.token_id, token.text, token.probability)
                    yield (index, variant.spec, at, *measured, cache, rank, *words)


def _rows(result: RunResult) -> Iterator[tuple[Cell, ...]]:
    for name in ("hidden_l1", "hidden_relative"):
        floor = floor_values(result, name)
        for layer, value in enumerate(() if floor is None else floor):
            unit = ARRAYS[name].unit
            yield (None, "", f"{name}_floor", unit, layer, None, None, None, short(value))
    for index, variant in enumerate(result.variants):
        for name, unit, axes, values in _arrays(result, index):
            for at, value in np.ndenumerate(values):
                place = dict(zip(_PLACES[axes], at, strict=False))
                where = [place.get(axis) for axis in _PLACE_COLUMNS]
                yield (index, variant.spec, name, unit, *where, short(value))


def _arrays(result: RunResult, index: int) -> Iterator[tuple[str, str, str, Float32Array]]:
    """Name, unit, axes and values of every array of one variant."""
    variant = result.variants[index]
    for name, metric in ARRAYS.items():
        if (values := values_of(result, index, name)) is not None:
            yield name, metric.unit, metric.axes, values
    if variant.perturbation is not None and variant.perturbation.base_head_l1 is not None:
        yield "base_head_l1", "L1", "head", variant.perturbation.base_head_l1
    if variant.retained is not None:
        counts = entry_counts(variant.retained).astype(np.float32)
        yield "kept_entries", "entries", "kv_head", counts
