"""CapKV and Compactor as literal loops, with linear systems solved by hand."""

import math

from tests.reference.scores import Row


def solved(matrix: list[Row], right: Row) -> Row:
    """x of matrix x = right, by Gaussian elimination with pivots."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for at in range(size):
        pivot = max(range(at, size), key=lambda i, at=at: abs(rows[i][at]))
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for below in range(at + 1, size):
            factor = rows[below][at] / rows[at][at]
            rows[below] = [b - factor * a for a, b in zip(rows[at], rows[below], strict=True)]
    found = [0.0] * size
    for at in reversed(range(size)):
        known = sum(rows[at][j] * found[j] for j in range(at + 1, size))
        found[at] = (rows[at][size] - known) / rows[at][at]
    return found


def dot(one: Row, other: Row) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def outer_sum(weights: Row, rows: list[Row], ridge: float) -> list[Row]:
    """ridge I + sum of w u u^T."""
    size = len(rows[0])
    return [
        [
            (ridge if i == j else 0.0)
            + sum(w * u[i] * u[j] for w, u in zip(weights, rows, strict=True))
            for j in range(size)
        ]
        for i in range(size)
    ]


def capacity(keys: list[Row], values: list[Row], anchor: Row, tau: float, *, cosine: bool) -> Row:
    """s = w u^T (I + sum of w u u^T)^-1 u with u = v and w = exp(tau * alignment).

    Args:
        keys: of the entries after the sinks; scaled, where alignment is the dot product.
        values: of the same.
        anchor: mean query.
        tau: factor of the alignment.
        cosine: kvpress's alignment, whose weights it divides by the largest.
    """
    length = math.sqrt(dot(anchor, anchor)) if cosine else 1.0
    aligned = [
        dot(key, anchor) / (length * math.sqrt(dot(key, key)) if cosine else 1.0) for key in keys
    ]
    shift = max(aligned) if cosine else 0.0
    weights = [math.exp(tau * (each - shift)) for each in aligned]
    matrix = outer_sum(weights, values, 1.0)
    return [w * dot(u, solved(matrix, u)) for w, u in zip(weights, values, strict=True)]


def tile_attention(queries: list[Row], keys: list[Row], tile: int, *, attended: bool) -> Row:
    """What each entry gets from all queries of its tile; one query head, sinks cut off before.

    Missing queries of the last tile give 1 / tile to each entry; missing entries have logit 0
    where they are attended to.
    """
    found = []
    for first in range(0, len(keys), tile):
        own = keys[first : first + tile]
        missing = tile - len(own)
        sums = [missing / tile] * len(own)
        for query in queries[first : first + tile]:
            logits = [dot(query, key) for key in own] + ([0.0] * missing if attended else [])
            peak = max(logits)
            weights = [math.exp(each - peak) for each in logits]
            for at in range(len(own)):
                sums[at] += weights[at] / sum(weights)
        found += sums
    return found


def leverage(keys: list[Row], mixed: list[Row] | None, ridge: float) -> Row:
    """x^T (X^T X + ridge I)^-1 x of centred keys before RoPE, times a sketch [dim][k]."""
    means = [sum(column) / len(keys) for column in zip(*keys, strict=True)]
    rows = [[x - m for x, m in zip(key, means, strict=True)] for key in keys]
    if mixed is not None:
        rows = [[dot(row, list(column)) for column in zip(*mixed, strict=True)] for row in rows]
    matrix = outer_sum([1.0] * len(rows), rows, ridge)
    return [dot(row, solved(matrix, row)) for row in rows]


def standardised(rows: list[Row]) -> list[Row]:
    """Less the mean of all, over their standard deviation."""
    every = [x for row in rows for x in row]
    mean = sum(every) / len(every)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in every) / (len(every) - 1))
    return [[(x - mean) / max(deviation, 1e-6) for x in row] for row in rows]
