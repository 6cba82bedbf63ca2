"""Files of kept positions for the tests: made-up ones, and strategies of right ones."""

import json
from typing import Any

from hypothesis import strategies as st

from ckv_core.request.external_selection import ExternalSelection, pack

POSITIONS = st.sets(st.integers(0, 40), max_size=5).map(lambda found: pack(tuple(sorted(found))))
LABELS = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)


def document(retained: Any, label: str = "Mine", **members: Any) -> str:
    """One file of one variant."""
    variants = [{"label": label, "retained": retained}]
    return json.dumps({"schema": 1, "variants": variants} | members)


@st.composite
def own_variants(draw: st.DrawFn) -> ExternalSelection:
    """What the reader can give; always with a kept position."""
    depth = draw(st.integers(1, 3))
    layers, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    width = heads if depth == 3 else 1
    rows: list[tuple[bytes, ...] | None] = [
        draw(st.none() | st.tuples(*[POSITIONS] * width)) for _ in range(layers)
    ]
    # A list per layer cannot be told from no heads at all if it is empty.
    first = (pack((draw(st.integers(0, 40)),)), *draw(st.tuples(*[POSITIONS] * (width - 1))))
    rows[0] = first
    if depth == 2:
        rows = [None if row == (b"",) else row for row in rows]
    tokens = draw(st.none() | st.integers(41, 50))
    return ExternalSelection(
        label=draw(LABELS),
        rows=(first,) if depth == 1 else tuple(rows),
        same_heads=depth < 3,
        same_layers=depth == 1,
        layers=layers if depth > 1 else draw(st.none() | st.just(layers)),
        kv_heads=heads if depth == 3 else draw(st.none() | st.just(heads)),
        sha256=draw(st.sampled_from(["", "ab" * 32])),
        compressed_tokens=tokens,
        token_ids=draw(st.none() | st.just(pack(tuple(range(tokens or 41))))),
    )
