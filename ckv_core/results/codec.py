"""The result JSON by what the records declare, both ways; a file may be hand-made or hostile.

docs/result_json.md describes the format.
"""

import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from ckv_core.methods.parameters import ParameterValue
from ckv_core.request.compare_request import MAX_NEW_TOKENS, MAX_SWEEP_POINTS, MAX_VARIANTS
from ckv_core.results.events import RunResult
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import (
    MAX_HEADS,
    MAX_LAYERS,
    Candidate,
    Float32Array,
    HeldSeries,
    ModelInfo,
    Perturbation,
    PromptInfo,
    RetainedSet,
    RoundingFloor,
    VariantResult,
)
from ckv_core.runtime.bounds import Axes, Chars, Many, Measured, Needed, Within
from ckv_core.runtime.json_fields import JsonField

SCHEMA = 1
MAX_SLOTS = 2**29  # layers x KV heads x prompt tokens; a mask takes a byte for each
MAX_ALL_SLOTS = 2**30  # of all variants; each keeps a bit of them
MAX_FLOAT32 = float(np.finfo(np.float32).max)
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


def measured_json(result: RunResult) -> dict[str, Any]:
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
    root = JsonField(data)
    if type(root["schema"].value) is not int or root["schema"].value != SCHEMA:
        root["schema"].fail(f"schema {SCHEMA} is expected")
    is_known = not root["model"].absent and not root["prompt"].absent
    most = MAX_SWEEP_POINTS if root["kind"].value == "sweep" else MAX_VARIANTS
    root["variants"].items(most if is_known else 0)
    return Reader(root).record(root, RunResult)


def revived(record: type[T], value: Any) -> T:
    """Undo `plain` of what this app wrote itself, arrays with NaN apart; nothing is checked."""
    return cast("T", _reviver(cast("Any", record))(value))


@cache
def _reviver(declared: Any) -> Callable[[Any], Any]:
    base, _ = _parts(declared)
    if base in _REVIVED:
        return _REVIVED[base]
    if get_origin(base) in _UNIONS and base != ParameterValue:
        there = _reviver(get_args(base)[0])
        return lambda value: None if value is None else there(value)
    if get_origin(base) is tuple:
        item = _reviver(get_args(base)[0])
        return tuple if item is _as_it_is else lambda values: tuple(map(item, values))
    if not is_dataclass(base):
        return _as_it_is
    record = cast("type", base)
    kinds = [(name, _reviver(kind)) for name, kind in declarations(record).items()]

    def revive(value: Any) -> Any:
        if isinstance(value, list):
            return record(*(read(item) for (_, read), item in zip(kinds, value, strict=True)))
        return record(**{name: read(value[name]) for name, read in kinds if name in value})

    return revive


def _as_it_is(value: Any) -> Any:
    return value


@cache
def declarations(record: type) -> dict[str, Any]:
    """The types of a record's members, bounds included."""
    hints = get_type_hints(record, include_extras=True)
    return {item.name: hints[item.name] for item in fields(record)}


@dataclass(slots=True)
class Reader:
    """Reads records from untrusted JSON values, each member by its type and its bounds.

    All methods raise ConfigError if a value is not what the record declares.

    Attributes:
        root: the whole document.
        sizes: of what was read so far, by name: whole numbers, and lengths of arrays.
        evictable: layers that methods may evict from.
    """

    root: JsonField
    sizes: dict[str, int] = field(default_factory=lambda: {"one": 1})
    evictable: tuple[int, ...] = ()

    def record(self, at: JsonField, record: type[T]) -> T:
        """A record; one with a default may be missing unless it is `Needed`."""
        values: dict[str, Any] = {}
        optional = {
            item.name
            for item in fields(cast("Any", record))
            if (item.default, item.default_factory) != (MISSING, MISSING)
        }
        for name, declared in declarations(cast("Any", record)).items():
            fill = _FILLED.get((record, name))
            if not at[name].absent:
                values[name] = self.read(at[name], declared)
            elif fill is not None:
                values[name] = fill(self, at)
            elif name not in optional or Needed() in _parts(declared)[1]:
                values[name] = self.read(at[name], declared)
            if isinstance(values.get(name), int | tuple):
                size = values[name]
                self.sizes[name] = size if isinstance(size, int) else len(size)
        made = record(**values)
        if record in _CHECKS:
            _CHECKS[record](self, at, made)
        return made

    def read(self, at: JsonField, declared: Any) -> Any:
        base, bounds = _parts(declared)
        origin = get_origin(base)
        if base in _READ:
            return _READ[base](self, at)
        if origin in _UNIONS:
            return None if at.absent else self.read(at, get_args(base)[0])
        if origin is Literal:
            return at.one_of(*get_args(base))
        if is_dataclass(base):
            return self.record(at, cast("type", base))
        bound = next((each for each in bounds if not isinstance(each, Needed)), Within())
        return _BOUNDED[type(bound)](self, at, base, bound)

    def array(self, at: JsonField, axes: Axes) -> Float32Array:
        """A float32 array of those sizes."""
        first = self.sizes[axes.names[0]]
        if len(axes.names) == 1:
            items = at.items(max(first, MAX_LAYERS), first)
            if axes.low is None:
                return np.array([_measured(item, MAX_FLOAT32) for item in items], np.float32)
            return np.array([item.number(axes.low, MAX_FLOAT32) for item in items], np.float32)
        second = self.sizes[axes.names[1]]
        values = np.full((first, second), np.nan, np.float32)
        for layer, row in enumerate(at.items(MAX_LAYERS, first)):
            if not row.absent:
                items = row.items(MAX_HEADS, second)
                values[layer] = [_measured(item, MAX_FLOAT32) for item in items]
        return values

    def number(self, at: JsonField, kind: type, bound: Within) -> float:
        """A whole number or a float between those bounds."""
        high = self.sizes[bound.high] if isinstance(bound.high, str) else bound.high
        return at.integer(int(bound.low), int(high)) if kind is int else at.number(bound.low, high)

    def many(self, at: JsonField, base: Any, bound: Many) -> Any:
        """An array or an object of values of one type."""
        kind, inner = get_origin(base), get_args(base)
        most, length = (
            (self.sizes[bound.most],) * 2 if isinstance(bound.most, str) else (bound.most, None)
        )
        if kind not in (tuple, list):
            members = at.members(most)
            return {key: self.read(item, inner[1]) for key, item in members.items()}
        if bound.ascending:
            return _ascending(at, most)
        item_type, bounds = _parts(inner[0])
        if item_type is int and length is None:  # token ids are long
            return at.integers(int(bounds[0].low), int(bounds[0].high), most)
        return kind(self.read(item, inner[0]) for item in at.items(most, length))


def _parts(declared: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without its bounds, and the bounds."""
    if get_origin(declared) is not Annotated:
        return declared, ()
    base, *bounds = get_args(declared)
    return base, tuple(bounds)


def _measured(at: JsonField, most: float) -> float:
    if at.absent:
        return math.nan
    if isinstance(at.value, str):
        return float(at.one_of("inf", "-inf"))
    return at.number(-most, most)


def _ascending(at: JsonField, end: int) -> tuple[int, ...]:
    values = at.integers(0, end - 1, end)
    if not all(left < right for left, right in pairwise(values)):
        at.fail("an ascending array is expected")
    return values


def _parameter(_: Reader, at: JsonField) -> ParameterValue:
    if isinstance(at.value, str):
        return at.text(200)
    return at.integer(-(2**53), 2**53) if isinstance(at.value, int) else at.number()


def _candidate(reader: Reader, at: JsonField) -> Candidate:
    kinds = declarations(Candidate).values()
    return Candidate(*map(reader.read, at.items(3, 3), kinds))


def _context(reader: Reader, at: JsonField) -> tuple[int, int]:
    first, end = at.items(2, 2)
    start = first.integer(0, reader.sizes["token_ids"])
    return start, end.integer(start, reader.sizes["token_ids"])


def _retained(reader: Reader, at: JsonField) -> RetainedSet:
    layers, heads, positions = (
        reader.sizes[name] for name in ("layers", "kv_heads", "compressed_tokens")
    )
    mask = np.ones((layers, heads, positions), np.bool_)
    for layer, row in enumerate(at.items(MAX_LAYERS, layers)):
        if layer not in reader.evictable:
            if not row.absent:
                row.fail("null is expected, as this layer is not evictable")
            continue
        for head, kept in enumerate(row.items(MAX_HEADS, heads)):
            mask[layer, head] = False
            mask[layer, head, list(_ascending(kept, positions))] = True
    return RetainedSet.from_mask(mask)


def _analysis(reader: Reader, at: JsonField) -> dict[str, Float32Array]:
    """Arrays of known names; sizes as the model has them, one length for all that have steps."""
    arrays, lengths = {}, set()
    for name, item in at.members(len(QUANTITIES)).items():
        if name not in QUANTITIES:
            item.fail("the name of a known quantity is expected")
        axes = QUANTITIES[name].axes
        if axes == "step":
            reader.sizes["steps"] = len(item.items(MAX_NEW_TOKENS))
        arrays[name] = reader.array(item, Axes(_AXES[axes]))
        lengths |= {len(arrays[name])} if axes == "step" else set()
    if len(lengths) > 1:
        at.fail("one number of steps for all quantities is expected")
    return arrays


def _evicted(reader: Reader, at: JsonField) -> bytes:
    """Rows of step, layer, KV head and position; no entry is evicted twice."""
    steps, layers, heads = (reader.sizes[name] for name in ("entries", "layers", "kv_heads"))
    ends = (steps, layers, heads, reader.sizes["tokens"] + steps)
    rows = [
        tuple(item.integer(0, end - 1) for item, end in zip(row.items(4, 4), ends, strict=True))
        for row in at.items(math.prod(ends[1:]))
    ]
    if any(here >= there for here, there in pairwise(rows)):
        at.fail("ascending rows are expected")
    if len({row[1:] for row in rows}) < len(rows):
        at.fail("each entry is expected once")
    return np.array(rows, "<u4").tobytes()


def _perturbation(reader: Reader, at: JsonField) -> Perturbation | None:
    return None if at["head_l1"].absent else reader.record(at, Perturbation)


def _floor(reader: Reader, at: JsonField) -> RoundingFloor | None:
    return None if reader.root["model"].absent else reader.record(at, RoundingFloor)


def _evictable(reader: Reader, _: JsonField) -> tuple[int, ...]:
    """Where a file does not list them: the layers of the first kept set, or else all."""
    layers = reader.sizes["layers"]
    for variant in reader.root["variants"].items(MAX_SWEEP_POINTS):
        if not variant["retained"].absent:
            rows = variant["retained"].items(layers, layers)
            return tuple(layer for layer, row in enumerate(rows) if not row.absent)
    return tuple(range(layers))


def _check_model(reader: Reader, at: JsonField, model: ModelInfo) -> None:
    if model.query_heads % model.kv_heads:
        at["kv_heads"].fail(f"a divisor of the {model.query_heads} query heads is expected")
    reader.evictable = model.evictable_layers


def _check_prompt(reader: Reader, at: JsonField, prompt: PromptInfo) -> None:
    reader.sizes["tokens"] = at["tokens"].integer(prompt.tokens, prompt.tokens)
    if reader.root["model"].absent:
        return
    slots = reader.sizes["layers"] * reader.sizes["kv_heads"] * prompt.compressed_tokens
    if slots > MAX_SLOTS:
        at["compressed_tokens"].fail(
            f"layers x KV heads x compressed tokens of at most {MAX_SLOTS} are expected"
        )
    variants = reader.root["variants"]
    kept = sum(not item["retained"].absent for item in variants.items(MAX_SWEEP_POINTS))
    if slots * kept > MAX_ALL_SLOTS:
        variants.fail(f"kept sets of at most {MAX_ALL_SLOTS} bits together are expected")


def _check_final(_: Reader, at: JsonField, made: Perturbation | RoundingFloor) -> None:
    if at["final_hidden_l1"].absent:
        return
    final = _measured(at["final_hidden_l1"], MAX_FLOAT32)
    if not np.isclose(final, made.final_hidden_l1, rtol=1e-3, equal_nan=True):
        at["final_hidden_l1"].fail("the last value of layer_hidden_l1 is expected")


def _check_held(_: Reader, at: JsonField, held: HeldSeries) -> None:
    if not held.entries:
        at.fail("at least one of entries is expected")


def _check_steps(_: Reader, at: JsonField, variant: VariantResult) -> None:
    """As many forced steps as the measured arrays have; or none."""
    lengths = [len(a) for name, a in variant.analysis.items() if QUANTITIES[name].axes == "step"]
    if variant.forced_steps and lengths and len(variant.forced_steps) != lengths[0]:
        at["forced_steps"].fail(f"{lengths[0]} steps are expected, as in analysis")


_WRITE: dict[type, Callable[[Any], Any]] = {
    Candidate: lambda each: [each.token_id, each.text, each.probability],
    HeldSeries: lambda held: (
        record_json(held, ("evicted",)) | {"evicted": held.evictions().tolist()}
    ),
}
_REVIVED: dict[Any, Callable[[Any], Any]] = {
    float: lambda value: math.nan if value is None else float(value),
    Float32Array: lambda value: np.array(value, np.float32),
    Candidate: lambda value: Candidate(*value),  # there are thousands
}
_READ: dict[Any, Callable[[Reader, JsonField], Any]] = {
    bool: lambda _, at: at.boolean(),
    bytes: _evicted,
    ParameterValue: _parameter,
    tuple[int, int]: _context,
    Candidate: _candidate,
    Mapping[str, Float32Array]: _analysis,
    Perturbation: _perturbation,
    RetainedSet: _retained,
    RoundingFloor: _floor,
}
_BOUNDED: dict[type, Callable[[Reader, JsonField, Any, Any], Any]] = {
    Axes: lambda reader, at, _, axes: reader.array(at, axes),
    Chars: lambda _, at, __, chars: at.text(chars.most, chars.pattern),
    Many: Reader.many,
    Measured: lambda _, at, __, bound: _measured(at, bound.most),
    Within: Reader.number,
}
# What members mean that files made elsewhere lack.
_FILLED: dict[tuple[type, str], Callable[[Reader, JsonField], Any]] = {
    (ModelInfo, "context_limit"): lambda *_: 0,
    (ModelInfo, "evictable_layers"): _evictable,
    (PromptInfo, "context_tokens"): lambda reader, _: (0, reader.sizes["compressed_tokens"]),
    (PromptInfo, "pieces"): lambda reader, _: ("",) * reader.sizes["token_ids"],
    # Null there: a text that was cut before an answer is not wrong.
    (VariantResult, "answer_found"): lambda _, at: False if at["outcome"].value == "cut" else None,
    (RunResult, "finished"): lambda *_: True,
}
_CHECKS: dict[type, Callable[[Reader, JsonField, Any], None]] = {
    HeldSeries: _check_held,
    ModelInfo: _check_model,
    Perturbation: _check_final,
    PromptInfo: _check_prompt,
    RoundingFloor: _check_final,
    VariantResult: _check_steps,
}
