"""A full cache whose kept prompt entries have gone through a store, one number after another."""

from typing import Any

import numpy as np
from transformers import DynamicCache

from tests.reference.forward import Kept

GROUP = 32


def round_kept(cache: DynamicCache, kept: Kept) -> None:
    """Eight bits: the largest kept number of a keys' channel is 127, and of an entry's values."""
    for keys, values, places in _older(cache, kept, 0):
        for channel in range(keys.shape[1]):
            _rounded(keys, [(i, channel) for i in places])
        for i in places:
            _rounded(values, [(i, channel) for channel in range(values.shape[1])])


def quarter_kept(cache: DynamicCache, kept: Kept, residual: int) -> None:
    """Four bits: keys by channel in groups of 32 entries, values by entry in groups of channels."""
    for keys, values, places in _older(cache, kept, residual):
        for channel in range(keys.shape[1]):
            for at in range(0, len(places), GROUP):
                _coded(keys, [(i, channel) for i in places[at : at + GROUP]])
        width = values.shape[1]
        group = GROUP if width % GROUP == 0 else width
        for i in places:
            for at in range(0, width, group):
                _coded(values, [(i, channel) for channel in range(at, at + group)])


def thin_kept(cache: DynamicCache, kept: Kept, residual: int, pruned: float, queries: Any) -> None:
    """Keys of older entries lose the channels that add least to the logits.

    As github.com/SalesforceAIResearch/ThinK d200577 ThinK_eager/src/kv_pruning_utils.py: the size
    of a channel is that of all kept keys, the newest too. `queries` is
    [layer][query_head][token][channel] of the prompt's last 32 tokens.
    """
    heads = [(layer, head) for layer, rows in enumerate(kept) for head in range(len(rows or []))]
    older, all_kept = (list(_older(cache, kept, newest)) for newest in (residual, 0))
    for (layer, head), (keys, _, places), (*_, held) in zip(heads, older, all_kept, strict=True):
        if not places:
            continue
        group = len(queries[layer]) // len(kept[layer] or [])
        own = queries[layer][head * group : (head + 1) * group]
        scores = [
            sum(float(row[channel]) ** 2 for rows in own for row in rows)
            * sum(float(keys[i, channel]) ** 2 for i in held)
            for channel in range(keys.shape[1])
        ]
        worst = sorted(range(len(scores)), key=lambda channel: (scores[channel], -channel))
        for channel in worst[: int(len(scores) * pruned + 1e-9)]:
            for i in places:
                keys[i, channel] = 0


def _older(cache: DynamicCache, kept: Kept, residual: int) -> Any:
    """Keys, values and the kept places but for the newest, of each head."""
    for layer, heads in enumerate(kept):
        for head, row in enumerate(heads or []):
            places = [i for i, keep in enumerate(row) if keep]
            states = cache.layers[layer]
            yield states.keys[0, head], states.values[0, head], places[: len(places) - residual]


def _coded(table: Any, cells: list[tuple[int, int]]) -> None:
    """Sixteen levels from the smallest to the largest; both ends are held as float16."""
    numbers = [np.float32(float(table[cell])) for cell in cells]
    low, high = min(numbers), max(numbers)
    first = np.float32(np.float16(low))
    step = np.float32(np.float16((high - low) / np.float32(15)))
    for cell, number in zip(cells, numbers, strict=True):
        level = min(max(round(float((number - first) / step)), 0), 15) if step else 0
        table[cell] = float(first + step * np.float32(level))


def _rounded(table: Any, cells: list[tuple[int, int]]) -> None:
    numbers = [float(table[cell]) for cell in cells]
    scale = max(map(abs, numbers)) / 127
    for cell, number in zip(cells, numbers, strict=True):
        table[cell] = round(number / scale) * scale
