"""The data behind a run's charts as CSV text, one line per value."""

from collections.abc import Iterable, Iterator

import numpy as np

from ckv_core.analysis.sweep import ORACLES, SWEPT, alpha_optima, budget_unit, curves
from ckv_core.results.events import RunResult
from ckv_core.results.quantities import ARRAYS
from ckv_core.results.records import Float32Array, VariantResult
from ui.charts.cache import entry_counts
from ui.charts.heads import log2_ratio
from ui.charts.layers import layer_means
from ui.tables.csv_text import Cell, csv_text, number, short
from ui.tables.measured import floor_values, values_of

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


def layers_csv(result: RunResult) -> str:
    """Data of `layer_figure` and `head_layer_figure`: one line per variant and layer."""
    return csv_text(
        ("variant", "spec", "layer", "layer_hidden_l1", "mean_head_l1"),
        (
            (index, variant.spec, layer, number(hidden), number(mean))
            for index, variant in enumerate(result.variants)
            if variant.perturbation is not None
            for layer, (hidden, mean) in enumerate(
                zip(
                    variant.perturbation.layer_hidden_l1,
                    layer_means(variant.perturbation.head_l1),
                    strict=True,
                )
            )
        ),
    )


def heads_csv(result: RunResult) -> str:
    """Data of `head_grid_figure` for all variants: one line per variant, layer and query head."""
    head = ("variant", "spec", "layer", "query_head", "head_l1", "base_head_l1", "log2_ratio")
    return csv_text(
        head,
        (row for index, variant in enumerate(result.variants) for row in _heads_of(index, variant)),
    )


def budgets_csv(result: RunResult) -> str:
    """Data of `budgets_figure`: one line per variant, layer and KV head."""
    return csv_text(
        ("variant", "spec", "layer", "kv_head", "kept_entries"),
        (
            (index, variant.spec, layer, head, int(count))
            for index, variant in enumerate(result.variants)
            if variant.retained is not None
            for (layer, head), count in np.ndenumerate(entry_counts(variant.retained))
        ),
    )


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
    """Data of the charts of heads, layers and diagnostics; a place that does not apply is empty."""
    return csv_text(_HEAD, _rows(result))


def sweep_csv(result: RunResult) -> str:
    """Data of `curve_figure`: one line per point, all figures and oracles; an unknown is empty."""
    figures = (*SWEPT.values(), *ORACLES)
    head = ("variant", "spec", "alpha", f"budget_{budget_unit(result)}")
    return csv_text(
        (*head, *(figure.key for figure in figures)),
        (
            (
                index,
                result.variants[index].spec,
                curve.alpha,
                budget,
                *(figure.read(result.variants[index]) for figure in figures),
            )
            for curve in curves(result)
            for budget, index in curve.points
        ),
    )


def alphas_csv(result: RunResult) -> str:
    """Data of the alpha charts: one line per layer, KV head empty, and one per KV head."""
    return csv_text(
        ("spec", f"budget_{budget_unit(result)}", "layer", "kv_head", "best_alpha"),
        (
            (each.spec, each.budget, place[0], place[1] if len(place) > 1 else None, number(alpha))
            for each in alpha_optima(result)
            for values in (each.layer_alpha, each.head_alpha)
            for place, alpha in np.ndenumerate(values)
        ),
    )


def _candidates(result: RunResult) -> Iterator[tuple[Cell, ...]]:
    for index, variant in enumerate(result.variants):
        arrays = [variant.analysis.get(name) for name in _FORCED]
        for at, step in enumerate(variant.forced_steps):
            measured = [None if array is None else short(array[at]) for array in arrays]
            for cache, candidates in (("full", step.reference), ("variant", step.variant)):
                for rank, token in enumerate(candidates, 1):
                    words = (token.token_id, token.text, token.probability)
                    yield (index, variant.spec, at, *measured, cache, rank, *words)


def _heads_of(index: int, variant: VariantResult) -> Iterable[tuple[Cell, ...]]:
    measured = variant.perturbation
    if measured is None:
        return
    base = measured.base_head_l1
    ratios = None if base is None else log2_ratio(measured.head_l1, base)
    for (layer, head), value in np.ndenumerate(measured.head_l1):
        yield (
            index,
            variant.spec,
            layer,
            head,
            number(value),
            None if base is None else number(base[layer, head]),
            None if ratios is None else number(ratios[layer, head]),
        )


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
    for name, figure in ARRAYS.items():
        if (values := values_of(result, index, name)) is not None:
            yield name, figure.unit, figure.axes, values
    if variant.perturbation is not None and variant.perturbation.base_head_l1 is not None:
        yield "base_head_l1", "L1", "head", variant.perturbation.base_head_l1
