"""Which entries a step of Quest reads, as literal loops.

Quest: mit-han-lab/Quest@01c1623 evaluation/quest_attention.py, `local_heavy_hitter_mask` and the
chunked maximum of keys times the query's sign; heads of a group by the mean of their softmaxes.
"""

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(each - top) for each in logits]
    return [each / sum(powers) for each in powers]


def quest_entries(queries: Rows, keys: Rows, page: int, budget: int, factor: float) -> list[int]:
    """Entries of one KV head that its query heads read."""
    pages = len(keys) // page
    rest = list(range(pages * page, len(keys)))
    count = max(1, (budget - len(rest)) // page)
    if count >= pages:
        return list(range(len(keys)))
    means = [0.0] * pages
    for query in queries:
        bounds = []
        for at in range(pages):
            own = keys[at * page : (at + 1) * page]
            most = (max(each * key[d] for key in own) for d, each in enumerate(query))
            bounds.append(factor * sum(most))
        for at, share in enumerate(softmax(bounds)):
            means[at] += share / len(queries)
    best = sorted(sorted(range(pages), key=lambda at: -means[at])[:count])
    return [at * page + step for at in best for step in range(page)] + rest


def attention(
    queries: Rows, keys: Rows, values: Rows, read: Sequence[int], factor: float
) -> tuple[list[list[float]], list[float]]:
    """Output and log of the denominator of each query over the entries read."""
    outputs, totals = [], []
    for query in queries:
        logits = [factor * sum(a * b for a, b in zip(query, keys[i], strict=True)) for i in read]
        shares = softmax(logits)
        channels = range(len(values[0]))
        outputs.append(
            [sum(p * values[i][d] for p, i in zip(shares, read, strict=True)) for d in channels]
        )
        totals.append(max(logits) + math.log(sum(math.exp(x - max(logits)) for x in logits)))
    return outputs, totals
