"""Arrays of a variant and of its base by name: what all diagnostics charts read."""

from dataclasses import dataclass

import numpy as np

from ckv_core.request.identity import base_index
from ckv_core.results.events import RunResult
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import Float32Array

# Figures of `Perturbation`, and one that is made of two arrays; all others are in QUANTITIES.
OWN = {
    "head_l1": ("Head output, isolated, L1", "L1", "head"),
    "hidden_l1": ("Hidden state after each layer, cascaded, L1", "L1", "layer"),
    "hidden_relative": ("Hidden L1 relative to the full run's size", "1", "layer"),
}


@dataclass(frozen=True, slots=True)
class Named:
    """Label and unit of an array, for titles and axes."""

    label: str
    unit: str


def named(name: str) -> Named:
    """How a reader calls an array."""
    if name in OWN:
        label, unit, _ = OWN[name]
    else:
        label, unit = QUANTITIES[name].label, QUANTITIES[name].unit
    return Named(label, unit_name(unit))


def unit_name(unit: str) -> str:
    """What stands at an axis: a share is of unit 1."""
    return "share" if unit == "1" else unit


def values_of(result: RunResult, index: int, name: str) -> Float32Array | None:
    """One array of one variant; None if it was not measured."""
    variant = result.variants[index]
    found = variant.perturbation
    if name in ("head_l1", "hidden_l1"):
        if found is None:
            return None
        return found.head_l1 if name == "head_l1" else found.layer_hidden_l1
    if name == "hidden_relative":
        size = _hidden_size(result)
        return None if found is None or size is None else found.layer_hidden_l1 / size
    return variant.analysis.get(name)


def holders(result: RunResult, name: str) -> list[int]:
    """Variants other than the full cache that have the array."""
    return [
        index
        for index, variant in enumerate(result.variants)
        if variant.method != "full" and values_of(result, index, name) is not None
    ]


def names_with(result: RunResult, axes: str, *groups: str) -> list[str]:
    """Names of the arrays of these axes that at least one variant has."""
    own = [name for name, (_, _, at) in OWN.items() if at == axes and "distance" in groups]
    more = [q.name for q in QUANTITIES.values() if q.axes == axes and q.group in groups]
    return [name for name in (*own, *more) if holders(result, name)]


def base_values(result: RunResult, index: int, name: str) -> Float32Array | None:
    """The array of the variant's base; the isolated head L1 is known without such a variant."""
    found = result.variants[index].perturbation
    if name == "head_l1" and found is not None and found.base_head_l1 is not None:
        return found.base_head_l1
    base = base_index(result.variants, index)
    return None if base is None else values_of(result, base, name)


def floor_values(result: RunResult, name: str) -> Float32Array | None:
    """How far rounding alone moves this run's hidden state, [layers]; None of other arrays."""
    if result.floor is None or name not in ("hidden_l1", "hidden_relative"):
        return None
    size = _hidden_size(result) if name == "hidden_relative" else np.float32(1)
    return None if size is None else result.floor.layer_hidden_l1 / size


def _hidden_size(result: RunResult) -> Float32Array | None:
    """The full run's hidden size is one for all variants; whoever carries it."""
    for variant in result.variants:
        if (size := variant.analysis.get("hidden_norm_l1")) is not None:
            return np.where(size > 0, size, np.float32(np.nan))
    return None
