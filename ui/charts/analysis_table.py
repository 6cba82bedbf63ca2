"""The laboratory's arrays as CSV text: one line per value, whatever its axes."""

import csv
import io
from collections.abc import Iterator

import numpy as np

from ckv_core.events import RunResult
from ckv_core.quantities import QUANTITIES
from ui.charts.tables import Cell, safe_text

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
    """Data of the laboratory's charts; a place that a quantity does not have is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(_HEAD)
    writer.writerows(_rows(result))
    return out.getvalue()


def _rows(result: RunResult) -> Iterator[tuple[Cell, ...]]:
    for index, variant in enumerate(result.variants):
        for name, values in variant.analysis.items():
            quantity = QUANTITIES[name]
            for at, value in np.ndenumerate(values):
                place = dict(zip(_PLACES[quantity.axes], at, strict=False))
                where = [place.get(axis) for axis in _PLACE_COLUMNS]
                # As few digits as tell a float32 from its neighbours: 0.35 and not 0.3499999940.
                number = None if np.isnan(value) else float(str(value))
                yield (index, safe_text(variant.spec), name, quantity.unit, *where, number)
