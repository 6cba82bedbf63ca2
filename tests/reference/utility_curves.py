"""LU-KV's curves and head budgets, as literal loops.

The authors' evaluation/curve_data/step1_llama.py and step2_compute_curve.py; kvpress 8bb29b9
lukv_press.py for the level of a budget.
"""

import heapq
from fractions import Fraction

from tests.reference.budgets import largest_remainder
from tests.reference.scores import Row

LEVELS = 99


def hull_slopes(losses: Row) -> list[float]:
    """Slope of the lower convex hull of the sums of losses at each of them, by its definition."""
    sums = [sum(losses[:at]) for at in range(len(losses) + 1)]
    found = []
    for at in range(len(losses)):
        steepest = max(
            min((sums[end] - sums[start]) / (end - start) for end in range(at + 1, len(sums)))
            for start in range(at + 1)
        )
        found.append(steepest)
    return found


def curves(worth: list[list[Row]], always: int) -> list[list[list[float]]]:
    """Shares of each head's entries that go, [levels][layers][heads], one entry after the other.

    Args:
        worth: [layers][heads][entries], best ranked first.
        always: protected entries of each head.
    """
    heads = [(at, head) for at, layer in enumerate(worth) for head in range(len(layer))]
    entries = len(worth[0][0])
    length = entries + always
    least = max(round(length / 100), always)
    losses = {(at, head): hull_slopes(worth[at][head][::-1]) for at, head in heads}
    keeps, done, found = dict.fromkeys(heads, length), 0, []
    heap = [(losses[head][0], head, 0) for head in heads] if entries else []
    heapq.heapify(heap)
    for level in range(1, LEVELS + 1):
        while heap and done < round(level / 100 * (len(heads) * length)):
            _, head, at = heapq.heappop(heap)
            if keeps[head] > least:
                keeps[head] -= 1
                done += 1
                if at + 1 < entries:
                    heapq.heappush(heap, (losses[head][at + 1], head, at + 1))
        rows = [[1 - keeps[at, head] / length for head in range(len(worth[0]))] for at in
                range(len(worth))]  # fmt: skip
        found.append(rows)
    return found


def budgets(table: list[list[list[float]]], spare: int, entries: int, always: int) -> list[int]:
    """Entries of each head beyond the protected ones: what its curve leaves, scaled to the total.

    Args:
        table: [levels][layers][heads].
        spare: mean entries of a head.
        entries: candidates of each head.
        always: protected entries of each head.
    """
    length = entries + always
    level = round(Fraction(100 * (entries - spare), length)) - 1
    flat = [each for row in table[max(0, min(LEVELS - 1, level))] for each in row]
    left = [max(Fraction(0), (1 - Fraction(each)) * length - always) for each in flat]
    if not sum(left):
        left = [Fraction(1)] * len(flat)
    total = spare * len(flat)
    return largest_remainder([each * total / sum(left) for each in left], total, entries)


def utility(rows: list[list[Row]], norms: list[Row], group: int) -> list[Row]:
    """Of each KV head's entries, the largest weighed attention of any later token and query head.

    Args:
        rows: [query_heads][later tokens][entries or more].
        norms: [query_heads][entries], L2 norms of V W_O.
        group: query heads that share a KV head.
    """
    whole = sum(map(sum, norms))
    found = []
    for first in range(0, len(rows), group):
        own = range(first, first + group)
        found.append(
            [
                max(row[i] * norms[head][i] / whole for head in own for row in rows[head])
                for i in range(len(norms[0]))
            ]
        )
    return found
