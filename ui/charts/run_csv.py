"""The data behind a run's charts as CSV text, one line per value."""

from collections.abc import Iterator

import numpy as np

from ckv_core.experiment.runs import together
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import ARRAYS
from ckv_core.records.records import Float32Array
from ui.charts.layers import entry_counts
from ui.tables.csv_text import Cell, csv_text, short
from ui.tables.measured import floor_values, values_of
from ui.tables.points import points_csv

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
