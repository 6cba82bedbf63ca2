"""Kept sets of layouts in plain loops: one set per layer, entry by entry or in whole pages."""

from collections.abc import Sequence
from math import floor

Scores = Sequence[Sequence[float]]  # [kv_heads][positions]


def shared(scores: Scores, candidates: Sequence[int]) -> dict[int, float]:
    """Mean of the heads' scores, of each position that may be evicted."""
    return {i: sum(row[i] for row in scores) / len(scores) for i in candidates}


def best(scores: dict[int, float], count: int) -> list[int]:
    """Of equal ones the earlier."""
    return sorted(scores, key=lambda i: (-scores[i], i))[:count]


def keep_layer(scores: Scores, protected: set[int], spare: int) -> set[int]:
    """One set for all heads."""
    candidates = [i for i in range(len(scores[0])) if i not in protected]
    return protected | set(best(shared(scores, candidates), spare))


def keep_pages(
    first: Scores, second: Scores, protected: set[int], spare: int, size: int, alpha: float
) -> set[int]:
    """Whole pages for all heads; with alpha 1 by the first score alone."""
    positions = len(first[0])
    pages: dict[int, list[int]] = {}
    for i in range(positions):
        pages.setdefault(i // size, []).append(i)
    held = {i // size for i in protected}
    kept = set(protected)

    def take(entries: Sequence[int], left: int) -> int:
        for i in entries:
            if left and i not in kept:
                kept.add(i)
                left -= 1
        return left

    for page in sorted(held):
        spare = take(pages[page], spare)
    free = [page for page in pages if page not in held]

    def ranked(scores: Scores) -> list[int]:
        of = shared(scores, range(positions))
        return best({p: sum(of[i] for i in pages[p]) / len(pages[p]) for p in free}, len(free))

    whole = min(spare // size, len(free))
    chosen = ranked(first)[: floor(alpha * whole)]
    chosen += [page for page in ranked(second) if page not in chosen][: whole - len(chosen)]
    for page in (*chosen, *ranked(first)):
        spare = take(pages[page], spare)
    return kept
