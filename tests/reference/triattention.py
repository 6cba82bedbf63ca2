"""TriAttention as its authors' code has it, with complex numbers and lists.

WeianMao/triattention@c3744ee: triattention/methods/pruning_utils.py `score_keys_for_round` and
`compute_frequency_statistics_from_means`, triattention.py `_select_per_layer_perhead_independent`.
"""

import cmath
import math
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from torch import Tensor

from tests.reference.evicting_methods import Beginning
from tests.reference.forward import Held, LiteralPolicy
from tests.reference.scores import Row
from tests.reference.selection import top_k

OFFSETS = [2**power for power in range(17)]


class Centre(NamedTuple):
    """A query head's mean query before RoPE, and the mean size of each of its complex numbers."""

    mean: list[complex]
    size: list[float]


def pairs(state: Sequence[float]) -> list[complex]:
    half = len(state) // 2
    return [complex(state[f], state[f + half]) for f in range(half)]


def centre(queries: Sequence[Sequence[float]]) -> Centre:
    """Of queries [tokens][head_dim] before RoPE."""
    each = [pairs(query) for query in queries]
    columns = [*zip(*each, strict=True)]
    return Centre(
        [sum(column) / len(each) for column in columns],
        [fmean(map(abs, column)) for column in columns],
    )


def scores(
    own: Centre, keys: list[Row], positions: Sequence[int], now: int, omega: Sequence[float]
) -> list[float]:
    """Of one query head's keys after RoPE, at these positions, when `now` tokens were read."""
    found = []
    for key, position in zip(keys, positions, strict=True):
        plain = [
            turned * cmath.exp(-1j * position * w)
            for turned, w in zip(pairs(key), omega, strict=True)
        ]
        extra = sum(
            (size - abs(mean)) * abs(k)
            for size, mean, k in zip(own.size, own.mean, plain, strict=True)
        )
        waves = []
        for offset in OFFSETS:
            wave = 0.0
            for mean, k, w in zip(own.mean, plain, omega, strict=True):
                phase = cmath.phase(mean * k.conjugate())
                wave += abs(mean) * abs(k) * math.cos((now - position + offset) * w + phase)
            waves.append(wave)
        found.append(fmean(waves) + extra)
    return found


def ranked(
    centres: list[Centre],
    keys: list[Row],
    positions: Sequence[int],
    now: int,
    omega: Sequence[float],
) -> list[float]:
    """Of one KV head: standard deviations from the mean, the largest of its query heads."""
    normal = []
    for own in centres:
        row = scores(own, keys, positions, now, omega)
        spread = max(pstdev(row), 1e-6)
        normal.append([(each - fmean(row)) / spread for each in row])
    return [max(column) for column in zip(*normal, strict=True)]


def triattention(
    centres: dict[int, list[Centre]],
    cache: Any,
    omega: Sequence[float],
    budget: int,
    buffer: int,
    first: int,
) -> tuple[Beginning, LiteralPolicy]:
    """Every head keeps its best after the prompt, and again after each full buffer.

    Args:
        centres: of each layer's query heads.
        cache: of all tokens, with keys after RoPE.
        omega: angles over one position.
        budget: entries of each KV head.
        buffer: steps.
        first: tokens read before the first step.
    """  # fmt: skip

    def best(layer: int, head: int, positions: list[int], now: int, kv_heads: int) -> list[int]:
        group = len(centres[layer]) // kv_heads
        own = centres[layer][head * group : (head + 1) * group]
        keys = [cache.layers[layer].keys[0, head, i].double().tolist() for i in positions]
        chosen = top_k(ranked(own, keys, positions, now, omega), budget)
        return sorted(positions[at] for at in chosen)

    def begin(layer: int, attention: Tensor, kv_heads: int) -> Held:
        length = attention.shape[1]
        every = list(range(length))
        return [best(layer, head, every, length, kv_heads) for head in range(kv_heads)]

    def policy(step: int, layer: int, held: Held, _attention: Tensor) -> Held:
        if step % buffer or len(held[0]) <= budget:
            return held
        now = first + step
        return [best(layer, head, row, now, len(held)) for head, row in enumerate(held)]

    return begin, policy
