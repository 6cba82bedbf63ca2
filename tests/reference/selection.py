"""Top-k and Algorithm 1 as literal loops over Python lists."""

import math
from fractions import Fraction

from tests.reference.scores import Row


def top_k(row: Row, k: int) -> list[int]:
    """Indices of the k largest; equal values go to the earlier position (design 2)."""
    if k > len(row):
        raise ValueError(f"cannot choose {k} of {len(row)}")
    return sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]


def two_stage(
    first: Row, second: Row, budget: int, alpha: float, counted: tuple[int, int] = (0, 0)
) -> list[int]:
    """Algorithm 1 with the quota rule of design 2, b' = floor(alpha * b).

    As kvpress counts, protected entries take their part of b' first, and b' is no less than what
    AdaKV's safeguard grants: `counted` is both.
    """
    # alpha as the decimal that the user wrote, so that 0.29 of 100 is 29
    protected, safe = counted
    first_quota = max(math.floor(Fraction(str(alpha)) * (budget + protected)), safe) - protected
    first_quota = min(max(first_quota, 0), budget)
    second_quota = budget - first_quota
    kept = top_k(first, first_quota)
    rest = [i for i in range(len(second)) if i not in kept]
    for best in top_k([second[i] for i in rest], second_quota):
        kept.append(rest[best])
    return kept
