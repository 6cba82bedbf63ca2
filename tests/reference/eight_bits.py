"""A full cache whose kept prompt entries have gone through eight bits, one number after another."""

from typing import Any

from transformers import DynamicCache

from tests.reference.forward import Kept


def round_kept(cache: DynamicCache, kept: Kept) -> None:
    """Keys: the largest kept number of a channel is 127. Values: the largest of an entry is."""
    for layer, heads in enumerate(kept):
        for head, row in enumerate(heads or []):
            places = [i for i, keep in enumerate(row) if keep]
            keys, values = cache.layers[layer].keys[0, head], cache.layers[layer].values[0, head]
            for channel in range(keys.shape[1]):
                _round(keys, [(i, channel) for i in places])
            for i in places:
                _round(values, [(i, channel) for channel in range(values.shape[1])])


def _round(table: Any, cells: list[tuple[int, int]]) -> None:
    numbers = [float(table[cell]) for cell in cells]
    scale = max(map(abs, numbers)) / 127
    for cell, number in zip(cells, numbers, strict=True):
        table[cell] = round(number / scale) * scale
