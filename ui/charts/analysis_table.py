"""The arrays behind the charts as CSV text: one line per value, whatever its axes."""

from collections.abc import Iterator

import numpy as np

from ckv_core.results.events import RunResult
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import Float32Array
from ui.tables.csv_text import Cell, csv_text, short
from ui.tables.measured import OWN, floor_values, values_of

_PLACES = {
    "head": ("layer", "query_head"),
    "kv_head": ("layer", "kv_head"),
    "layer": ("layer",),
    "model": (),
    "step": ("step",),
}
_PLACE_COLUMNS = ("layer", "query_head", "kv_head", "step")
_HEAD = ("variant", "spec", "quantity", "unit", *_PLACE_COLUMNS, "value")


def analysis_csv(result: RunResult) -> str:
    """Data of the charts of heads, layers and diagnostics; a place that does not apply is empty."""
    return csv_text(_HEAD, _rows(result))


def _rows(result: RunResult) -> Iterator[tuple[Cell, ...]]:
    for name in ("hidden_l1", "hidden_relative"):
        floor = floor_values(result, name)
        for layer, value in enumerate(() if floor is None else floor):
            unit = OWN[name][1]
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
    for name, (_, unit, axes) in OWN.items():
        values = values_of(result, index, name)
        if values is not None:
            yield name, unit, axes, values
    if variant.perturbation is not None and variant.perturbation.base_head_l1 is not None:
        yield "base_head_l1", "L1", "head", variant.perturbation.base_head_l1
    for name, values in variant.analysis.items():
        yield name, QUANTITIES[name].unit, QUANTITIES[name].axes, values
