"""The result JSON by what the records declare, both ways; a file may be hand-made or hostile.

docs/reference/result_json.md describes the format.
"""

import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from ckv_core.base.checked import check_schema, read
from ckv_core.methods.parameters import ParameterValue
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import ANALYSIS_ARRAYS
from ckv_core.records.records import Candidate, Float32Array, HeldSeries, VariantResult

SCHEMA = 1
WHOLE = "result JSON"
_AXES = {
    "head": ("layers", "query_heads"),
    "kv_head": ("layers", "kv_heads"),
    "layer": ("layers",),
    "model": ("one",),
    "step": ("steps",),
}
_UNIONS = (Union, types.UnionType)
T = TypeVar("T")


# --- writing ----------------------------------------------------------------------------


def to_json(result: RunResult) -> dict[str, Any]:
    """A run, whole or partial, as plain JSON values: all that `from_json` reads."""
    evictable = result.model.evictable_layers if result.model else ()
    return (
        {"schema": SCHEMA}
        | record_json(result, leave_out=("variants",))
        | {"variants": [_variant_json(variant, evictable) for variant in result.variants]}
    )


def record_json(record: Any, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """The members of a record and what it derives from them, as plain JSON values."""
    names = [item.name for item in fields(record)] + list(getattr(record, "derived", ()))
    return {name: plain(getattr(record, name)) for name in names if name not in leave_out}


def plain(value: Any) -> Any:
    """JSON values for any member of a record but a kept set; no NaN or infinity among them."""
    if isinstance(value, float):
        return number_json(value)
    if isinstance(value, np.ndarray):
        return array_json(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        # Token ids and texts are long.
        return list(value) if value and isinstance(value[0], int | str) else [*map(plain, value)]
    if is_dataclass(value):
        write: Callable[[Any], Any] = _WRITE.get(type(value), record_json)
        return write(value)
    return value


def array_json(array: Float32Array) -> list[Any]:
    """Plain lists; a row of nothing but NaN is null, as in a layer that is not evictable."""
    if array.ndim == 1:
        return [number_json(value) for value in array.tolist()]
    return [None if np.isnan(row).all() else array_json(row) for row in array]


def number_json(value: float) -> float | str | None:
    """Null for NaN; infinities as text."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def _variant_json(variant: VariantResult, evictable: tuple[int, ...]) -> dict[str, Any]:
    document = record_json(variant, leave_out=("retained",))
    if variant.perturbation is None:
        document["perturbation"] = dict.fromkeys(("head_l1", "layer_hidden_l1", "final_hidden_l1"))
    kept = variant.retained and [
        [np.flatnonzero(row).tolist() for row in heads] if layer in evictable else None
        for layer, heads in enumerate(variant.retained.mask())
    ]
    return document | {"retained": kept, "answer_found": variant.is_right}


# --- reading ----------------------------------------------------------------------------


def from_json(data: object) -> RunResult:
    """The run in a decoded result JSON; members that the format does not know are passed over.

    Raises:
        ConfigError: something is missing, of the wrong type, out of range or inconsistent; the
            sentence names its path.
    """
    check_schema(data, WHOLE, SCHEMA)
    quantities = {name: _AXES[each.axes] for name, each in ANALYSIS_ARRAYS.items()}
    return read(RunResult, data, WHOLE, quantities=quantities, one=1)


def revived(record: type[T], value: Any) -> T:
    """Undo `plain` of what this app wrote itself, arrays with NaN apart; nothing is checked."""
    return cast("T", _reviver(cast("Any", record))(value))


@cache
def _reviver(declared: Any) -> Callable[[Any], Any]:
    if declared in _REVIVED:
        return _REVIVED[declared]
    if get_origin(declared) in _UNIONS and declared != ParameterValue:
        there = _reviver(get_args(declared)[0])
        return lambda value: None if value is None else there(value)
    if get_origin(declared) is tuple:
        item = _reviver(get_args(declared)[0])
        return tuple if item is _as_it_is else lambda values: tuple(map(item, values))
    if not is_dataclass(declared):
        return _as_it_is
    record = cast("type", declared)
    kinds = [(name, _reviver(kind)) for name, kind in get_type_hints(record).items()]

    def revive(value: Any) -> Any:
        return record(**{name: read(value[name]) for name, read in kinds if name in value})

    return revive


def _as_it_is(value: Any) -> Any:
    return value


_WRITE: dict[type, Callable[[Any], Any]] = {
    HeldSeries: lambda held: (
        record_json(held, ("evicted",)) | {"evicted": held.evictions().tolist()}
    ),
}
_REVIVED: dict[Any, Callable[[Any], Any]] = {
    float: lambda value: math.nan if value is None else float(value),
    Float32Array: lambda value: np.array(value, np.float32),
    Candidate: lambda value: Candidate(*value),  # there are thousands
}
