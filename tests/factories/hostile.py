"""JSON that somebody changed by hand: any value at any place of a document."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 2**31, 10**400])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """Of every value in a document, itself included; of a list only of its first four."""
    yield above
    items = enumerate(value[:4]) if isinstance(value, list) else ()
    for key, part in value.items() if isinstance(value, dict) else items:
        yield from paths(part, (*above, key))


def forged(document: Any, path: Path, value: Any) -> Any:
    """The document with this value in that place, as a copy; the empty path is the whole."""
    if not path:
        return value
    first, *rest = path
    whole = copy.copy(document)
    whole[first] = forged(document[first], tuple(rest), value) if rest else value
    return whole
