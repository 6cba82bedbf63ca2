"""Ranges of positions: joined, cut, written into a record and read back. No torch."""

import re
from collections.abc import Iterable, Sequence

_WRITTEN = re.compile(r"\d{1,9}-\d{1,9}(?: \d{1,9}-\d{1,9})*", re.ASCII)


def merged(places: Iterable[range]) -> tuple[range, ...]:
    """Join ranges: ascending, those that touch are one, empty ones are left out."""
    joined: list[range] = []
    for place in sorted(filter(None, places), key=lambda each: each.start):
        if joined and place.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, place.stop))
        else:
            joined.append(place)
    return tuple(joined)


def without(places: Sequence[range], others: Iterable[range]) -> tuple[range, ...]:
    """The positions of `places` that are in none of `others`; both as `merged` gives them."""
    left = list(places)
    for other in others:
        below = [range(each.start, min(each.stop, other.start)) for each in left]
        above = [range(max(each.start, other.stop), each.stop) for each in left]
        left = [*filter(None, below), *filter(None, above)]  # or empty ones double each time
    return merged(left)


def ranges_text(places: Sequence[range]) -> str:
    """`12-39 57-60`, both ends included; what records keep."""
    return " ".join(f"{place.start}-{place[-1]}" for place in places)


def read_ranges(text: object, positions: int) -> tuple[range, ...]:
    """Undo `ranges_text`, within so many positions; nothing of a text of any file that is none."""
    if not isinstance(text, str) or not _WRITTEN.fullmatch(text):
        return ()
    pairs = (map(int, pair.split("-")) for pair in text.split())
    return merged(range(first, min(last + 1, positions)) for first, last in pairs)
