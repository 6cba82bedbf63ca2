"""KeyDiff as a literal loop: minus the cosine of each key to the mean of all keys of length one."""

import math

from tests.reference.scores import Row


def scores(keys: list[Row]) -> Row:
    """Of one KV head's keys, [entries][head_dim]."""
    units = [[x / math.sqrt(sum(v * v for v in key)) for x in key] for key in keys]
    anchor = [sum(column) / len(units) for column in zip(*units, strict=True)]
    size = math.sqrt(sum(v * v for v in anchor))
    return [-sum(a * x for a, x in zip(anchor, unit, strict=True)) / size for unit in units]
