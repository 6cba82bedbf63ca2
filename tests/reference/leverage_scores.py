"""CapKV and Compactor entry by entry, in float64; linear systems by NumPy."""

import numpy as np

from tests.reference.scores import Row


def capacity(keys: list[Row], values: list[Row], anchor: Row, tau: float, *, cosine: bool) -> Row:
    """s = w u^T (I + sum of w u u^T)^-1 u with u = v and w = exp(tau * alignment).

    Args:
        keys: of the entries after the sinks; scaled, where alignment is the dot product.
        values: of the same.
        anchor: mean query.
        tau: factor of the alignment.
        cosine: kvpress's alignment, whose weights it divides by the largest.
    """
    aligned = np.array([np.dot(key, anchor) for key in keys])
    if cosine:
        aligned /= np.array([np.linalg.norm(key) for key in keys]) * np.linalg.norm(anchor)
        aligned -= aligned.max()
    weights = np.exp(tau * aligned)
    pairs = list(zip(weights, values, strict=True))
    matrix = np.eye(len(values[0])) + sum(w * np.outer(u, u) for w, u in pairs)
    return [float(w * np.dot(u, np.linalg.solve(matrix, u))) for w, u in pairs]


def tile_attention(queries: list[Row], keys: list[Row], tile: int, *, attended: bool) -> Row:
    """What each entry gets from all queries of its tile; one query head, sinks cut off before.

    Missing queries of the last tile give 1 / tile to each entry; missing entries have logit 0
    where they are attended to.
    """
    found: Row = []
    for first in range(0, len(keys), tile):
        own = keys[first : first + tile]
        missing = tile - len(own)
        sums = np.full(len(own), missing / tile)
        for query in queries[first : first + tile]:
            logits = [np.dot(query, key) for key in own] + ([0.0] * missing if attended else [])
            weights = np.exp(np.array(logits) - max(logits))
            sums += weights[: len(own)] / weights.sum()
        found += sums.tolist()
    return found


def leverage(keys: list[Row], mixed: list[Row] | None, ridge: float) -> Row:
    """x^T (X^T X + ridge I)^-1 x of centred keys before RoPE, times a sketch [dim][k]."""
    rows = np.array(keys) - np.mean(keys, axis=0)
    rows = rows if mixed is None else rows @ np.array(mixed)
    matrix = rows.T @ rows + ridge * np.eye(rows.shape[1])
    return [float(row @ np.linalg.solve(matrix, row)) for row in rows]


def standardised(rows: list[Row]) -> list[Row]:
    """Less the mean of all, over their standard deviation."""
    deviation = np.std(rows, ddof=1)
    return ((np.array(rows) - np.mean(rows)) / max(deviation, 1e-6)).tolist()
