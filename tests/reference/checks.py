"""Comparisons of the engine's results with the reference; shared by the tests."""

import math
from typing import Any

from tests.reference.forward import Kept

# Share of kept entries that may differ: two float32 softmaxes round differently, so two
# entries whose scores agree to seven digits may change places at the cut.
MIN_AGREEMENT = 0.995
# Float32 in the engine against float64 in the reference, both fed by float32 activations.
L1_TOLERANCE = 0.02


def kept_from_mask(mask: Any, evictable: tuple[int, ...]) -> Kept:
    """[layers, kv_heads, positions] booleans to the reference's form."""
    rows = mask.tolist()
    return [rows[layer] if layer in evictable else None for layer in range(len(rows))]


def kept_from_positions(
    retained: list[list[list[int]]], positions: int, evictable: tuple[int, ...]
) -> Kept:
    """The result JSON's lists of ascending positions to the reference's form."""
    kept: Kept = []
    for layer, heads in enumerate(retained):
        if layer not in evictable:
            kept.append(None)
            continue
        for row in heads:
            assert row == sorted(set(row)), "positions must be ascending and unique"
        kept.append([[i in held for i in range(positions)] for held in map(set, heads)])
    return kept


def assert_heads_close(
    actual: list[list[float | None]],
    expected: list[list[float] | None],
    sizes: list[list[float]],
    tolerance: float,
) -> None:
    """Head L1 within a relative tolerance; layers that are not evictable hold NaN or None.

    Floor: A - A' cancels in float32 (2^-24 per entry), so an L1 below about a millionth of the
    head's own output, `sizes` = sum of A times value norm, is made of roundings.
    """
    for layer, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if theirs is None:
            assert all(value is None or math.isnan(value) for value in ours), layer
            continue
        for head, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            allowed = tolerance * b + 1e-6 * sizes[layer][head]
            assert abs(a - b) <= allowed, f"layer {layer} head {head}: {a}, expected {b}"
