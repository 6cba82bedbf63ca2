"""Arrays of a variant and of its base by name: what all diagnostics charts read."""

import numpy as np

from ckv_core.records.events import RunResult
from ckv_core.records.identity import base_index
from ckv_core.records.metrics import ARRAYS, array_of
from ckv_core.records.records import Float32Array


def values_of(result: RunResult, index: int, name: str) -> Float32Array | None:
    """One array of one variant; None if it was not measured."""
    variant = result.variants[index]
    if name != "hidden_relative":
        return array_of(variant, name)
    hidden, size = array_of(variant, "hidden_l1"), _hidden_size(result)
    return None if hidden is None or size is None else hidden / size


def holders(result: RunResult, name: str) -> list[int]:
    """Variants other than the full cache that have the array."""
    return [
        index
        for index, variant in enumerate(result.variants)
        if variant.method != "full" and values_of(result, index, name) is not None
    ]


def names_with(result: RunResult, axes: str, *groups: str) -> list[str]:
    """Names of the arrays of these axes that at least one variant has."""
    names = [key for key, q in ARRAYS.items() if q.axes == axes and q.group in groups]
    return [name for name in names if holders(result, name)]


def base_values(result: RunResult, index: int, name: str) -> Float32Array | None:
    """The array of the variant's base; the isolated head L1 is known without such a variant."""
    measured = result.variants[index].perturbation
    if name == "head_l1" and measured is not None and measured.base_head_l1 is not None:
        return measured.base_head_l1
    base = base_index(result.variants, index)
    return None if base is None else values_of(result, base, name)


def floor_values(result: RunResult, name: str) -> Float32Array | None:
    """How far rounding alone moves this run's hidden state, [layers]; None of other arrays."""
    if result.floor is None or name not in ("hidden_l1", "hidden_relative"):
        return None
    size = _hidden_size(result) if name == "hidden_relative" else np.float32(1)
    return None if size is None else result.floor.layer_hidden_l1 / size


def _hidden_size(result: RunResult) -> Float32Array | None:
    """The full run's hidden size, from any variant that carries it: all have the same."""
    for variant in result.variants:
        if (size := variant.analysis.get("hidden_norm_l1")) is not None:
            return np.where(size > 0, size, np.float32(np.nan))
    return None
