"""Knorm, KeyDiff, LagKV and Expected Attention of one KV head, as their definitions say."""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from tests.reference.scores import Row


def key_norms(keys: list[Row]) -> Row:
    """Method sheet 2.12: s = -||k||_2."""
    return [-math.hypot(*key) for key in keys]


def key_difference(keys: list[Row]) -> Row:
    """Minus the cosine of each key to the mean of all keys of length one."""
    units = np.array([np.array(key) / math.hypot(*key) for key in keys])
    anchor = units.mean(0)
    return (-(units @ anchor) / math.hypot(*anchor)).tolist()


def curdkv(keys: list[Row], values: list[Row], local: int) -> Row:
    """kvpress cur_press.py: shares of squared norms in runs of `local`, multiplied; sum 1."""
    products = []
    for i in range(len(keys)):
        run = range(i // local * local, min((i // local + 1) * local, len(keys)))
        shares = [
            sum(x * x for x in states[i]) / sum(x * x for j in run for x in states[j])
            for states in (keys, values)
        ]
        products.append(math.prod(shares))
    return [each / sum(products) for each in products]


def lots(seed: int, layer: int, head: int, entries: int) -> Row:
    """Uniform numbers from a generator of that place alone."""
    digest = hashlib.blake2b(f"({seed}, {layer}, {head})".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    return [float(x) for x in torch.rand(entries, generator=generator)]


def lag_relative(keys: list[Row], values: list[Row], lag: int) -> list[Row]:
    """Method sheet 2.13: the score of each partition but the last full one, sinks cut off before.

    Args:
        keys: [entries][head_dim] after the sinks.
        values: the same.
        lag: tokens of a partition.
    """
    found = []
    for p in range(len(keys) // lag - 1):
        total = np.zeros(lag)
        for states in (keys, values):
            own, following = (np.array(states[q * lag : (q + 1) * lag]) for q in (p, p + 1))
            least, width = following.min(0), np.ptp(following, axis=0)
            deviations = ((own - least) / np.where(width, width, 1.0)).std(axis=1, ddof=1)
            weights = np.exp(deviations - deviations.max())
            total += weights / weights.sum()
        found.append(total.tolist())
    return found


def lagkv(scores: list[Row], tail: int, budget: int) -> set[int]:
    """What is kept after the sinks: the tail, newest first, then a turn of all partitions each.

    Args:
        scores: of `lag_relative`.
        tail: entries after the scored partitions.
        budget: entries beyond the sinks.
    """
    lag = len(scores[0]) if scores else 0
    first_of_tail = len(scores) * lag
    queue = [first_of_tail + i for i in reversed(range(tail))]
    best = [sorted(range(lag), key=lambda i, row=row: (-row[i], i)) for row in scores]
    queue += [p * lag + best[p][turn] for turn in range(lag) for p in range(len(scores))]
    return set(queue[:budget])


def lagkv_ranks(scores: list[Row], sinks: int, entries: int) -> Row:
    """kvpress lagkv_press.py: ranks in partitions over their size, 1 for sinks and tail.

    Too few entries for a partition: places over their count.

    Args:
        scores: [partitions][lag].
        sinks: entries before them.
        entries: all others.
    """
    if not scores:
        return [1.0] * sinks + [i / entries for i in range(entries)]
    ranked = [sorted(row).index(each) / len(row) for row in scores for each in row]
    return [1.0] * sinks + ranked + [1.0] * (entries - len(ranked))


def rotation(position: int, dim: int, base: float = 100.0) -> Tensor:
    """RoPE's matrix at a position: halves turned against one another."""
    matrix = torch.zeros(dim, dim, dtype=torch.float64)
    for pair in range(dim // 2):
        angle = position * base ** (-2 * pair / dim)
        here, there = pair, pair + dim // 2
        matrix[here, here] = matrix[there, there] = math.cos(angle)
        matrix[here, there], matrix[there, here] = -math.sin(angle), math.sin(angle)
    return matrix


def expected_attention(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, parameters: dict[str, float]
) -> Row:
    """Method sheet 2.10, of one KV head; columns of entries after the sinks.

    Args:
        queries: [group_size, n, head_dim] before RoPE.
        keys: [n, head_dim] after RoPE.
        values: [n, value_dim].
        scaling: of the logits.
        parameters: sinks, future, offset.
    """
    n, dim = keys.shape
    sinks, future = int(parameters["sinks"]), int(parameters["future"])
    turn = torch.zeros(dim, dim, dtype=torch.float64)
    for position in range(n, n + future):
        turn += rotation(position, dim) / future
    mean_attention = torch.zeros(n - sinks, dtype=torch.float64)
    for own in queries.double():
        seen = own[sinks:]
        mean, spread = seen.mean(0), seen - seen.mean(0)
        covariance = spread.T @ spread / len(seen)
        mean, covariance = turn @ mean, turn @ covariance @ turn.T
        logits = [
            scaling * float(mean @ key) + scaling**2 * float(key @ covariance @ key) / 2
            for key in keys[sinks:].double()
        ]
        mean_attention += torch.tensor(logits, dtype=torch.float64).softmax(0) / len(queries)
    sizes = [float(value.double().norm()) for value in values[sinks:]]
    return [
        (float(a) + parameters["offset"]) * s for a, s in zip(mean_attention, sizes, strict=True)
    ]
