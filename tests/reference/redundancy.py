"""R-KV as its paper and code have it, with lists: a head's scores, and cuts while generating."""

import math
from typing import Any

from torch import Tensor

from tests.reference.forward import Held, LiteralPolicy
from tests.reference.scores import Row, pooled
from tests.reference.selection import top_k


def softmax(row: Row) -> Row:
    weights = [math.exp(x - max(row)) for x in row]
    return [w / sum(weights) for w in weights]


def redundancy(keys: list[Row], alike: float) -> Row:
    """Mean cosine of the others to each key, but for the newest one that each is alike to."""
    unit = [[x / math.sqrt(sum(y * y for y in key)) for x in key] for key in keys]
    count = len(keys)
    total = [0.0] * count
    for j, own in enumerate(unit):
        row = [sum(a * b for a, b in zip(own, other, strict=True)) for other in unit]
        row[j] = 0.0
        newest = max((i for i in range(count) if row[i] > alike), default=0)
        row[newest] = 0.0
        total = [t + x for t, x in zip(total, row, strict=True)]
    return softmax([t / count for t in total])


def r_kv(importance: Row, keys: list[Row], params: dict[str, Any]) -> Row:
    """mix * pooled importance - (1 - mix) * redundancy, of the entries before the window.

    Args:
        importance: mean over the window of the softmax over the entries before it.
        keys: of all entries.
        params: mix, alike, kernel.
    """
    mix, repeated = params["mix"], redundancy(keys, params["alike"])
    smooth = pooled(importance, "max", params["kernel"])
    return [mix * a - (1 - mix) * repeated[i] for i, a in enumerate(smooth)]


def cut_buffer(cache: Any, budget: int, params: dict[str, Any]) -> LiteralPolicy:
    """After each full buffer every head goes on with `budget` entries; one query head a KV head."""
    rows: dict[int, list[Tensor]] = {}

    def policy(step: int, layer: int, held: Held, attention: Tensor) -> Held:
        rows.setdefault(layer, []).append(attention)
        window = params["window"]
        if step % params["buffer"] or len(held[0]) <= budget:
            return held
        kept = []
        for head, positions in enumerate(held):
            past = positions[: len(positions) - window]
            keys = [cache.layers[layer].keys[0, head, i].double().tolist() for i in positions]
            seen = [[float(row[head, i]) for i in past] for row in rows[layer][-window:]]
            means = [sum(r[at] / sum(r) for r in seen) / window for at in range(len(past))]
            best = top_k(r_kv(means, keys, params), budget - window)
            kept.append(sorted([past[at] for at in best] + positions[len(past) :]))
        return kept

    return policy
