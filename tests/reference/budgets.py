"""Budgets beyond the protected entries, in exact arithmetic (fractions), design section 2.

`p` is the mean budget beyond the protected entries, `capacity` the number of candidates.
"""

import math
from fractions import Fraction

from tests.reference.scores import Row
from tests.reference.selection import top_k


def exact(number: float | int) -> Fraction:
    """A parameter as the decimal that the user wrote: 0.2 is one fifth."""
    return Fraction(str(number))


def largest_remainder(shares: list[Fraction], total: int, capacity: int) -> list[int]:
    """Whole numbers that sum to `total`, capped; the excess goes to the next in line.

    Floors first, then one each by descending remainder, ties to the lower index.
    """
    counts = [min(share.numerator // share.denominator, capacity) for share in shares]
    remainders = [share - count for share, count in zip(shares, counts, strict=True)]
    order = sorted(range(len(shares)), key=lambda i: (-remainders[i], i))
    while sum(counts) < total:
        for i in order:
            if sum(counts) < total and counts[i] < capacity:
                counts[i] += 1
    return counts


def kvpress_pyramid(p: int, layers: int, beta: float, capacity: int, window: int) -> list[int]:
    """PyramidKVPress.get_layer_budget, the window inside, but for its rounding of each layer."""
    kept, length = p + window, capacity + window
    least = kept / exact(beta)
    most = 2 * kept - least
    if most >= length - window:
        most = Fraction(length - window)
        least = 2 * kept - most
    if not length >= most >= least >= window or layers == 1:
        return [p] * layers
    shares = [most - layer * (most - least) / (layers - 1) for layer in range(layers)]
    return largest_remainder([share - window for share in shares], layers * p, capacity)


def kvpress_heads(scores: list[Row], p: int, safeguard: float, protected: int) -> list[int]:
    """AdaKVPress.compress: a head's best count first, then all entries of the layer by score.

    Args:
        scores: [kv_heads][candidates] first-stage scores.
        p: mean entries per head beyond the protected ones.
        safeguard: share of the whole budget that each head is sure of.
        protected: entries that stand before all others in every head.
    """
    floor = math.floor((p + protected) * exact(safeguard))
    safe = max(floor, 1) if safeguard > 0 else 0
    ranked = []
    for head, row in enumerate(scores):
        best = top_k(row, min(max(safe - protected, 0), p))
        ranked += [(i not in best, -value, head, i) for i, value in enumerate(row)]
    chosen = [head for _, _, head, _ in sorted(ranked)[: len(scores) * p]]
    return [chosen.count(head) for head in range(len(scores))]


def pyramid_layers(p: int, layers: int, beta: float, capacity: int) -> list[int]:
    """Layer budgets per head: arithmetic from hi = 2p - lo down to lo = p / beta."""
    low = Fraction(p) / exact(beta)
    high = 2 * p - low
    if high > capacity:
        high = Fraction(capacity)
        low = 2 * p - high
    if layers == 1:
        return [p]
    shares = [high - layer * (high - low) / (layers - 1) for layer in range(layers)]
    return largest_remainder(shares, layers * p, capacity)


def adaptive_heads(scores: list[Row], p: int, safeguard: float) -> list[int]:
    """One layer's head budgets: c_h * (1 - f) + f * p, c_h counted in the flattened top.

    Args:
        scores: [kv_heads][candidates] first-stage scores.
    """
    heads, capacity = len(scores), len(scores[0])
    flat = [value for row in scores for value in row]
    chosen = top_k(flat, heads * p)
    counts = [sum(i // capacity == head for i in chosen) for head in range(heads)]
    f = exact(safeguard)
    return largest_remainder([c * (1 - f) + f * p for c in counts], heads * p, capacity)


def granted(worth: list[float], total: int, most: int) -> list[int]:
    """One place after the other, by falling worth, gets `most` of what is left of `total`."""
    given = [0] * len(worth)
    for place in sorted(range(len(worth)), key=lambda at: (-worth[at], at)):
        given[place] = min(most, total - sum(given))
    return given


def laziness(rows: list[list[Row]], sinks: int, recent: int) -> float:
    """github.com/sail-sg/SimLayerKV 1fb6bda SimLayerKV_attention_llama.py, of the last queries.

    Args:
        rows: [query_heads][queries][entries].
        sinks: first entries.
        recent: newest entries; none counts twice.
    """
    near = [i for i in range(len(rows[0][0])) if i < sinks or i >= len(rows[0][0]) - recent]
    shares = [sum(row[i] for i in near) for head in rows for row in head]
    return sum(shares) / len(shares)
