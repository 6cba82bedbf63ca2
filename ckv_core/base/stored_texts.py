"""The example texts as sentences: prose for tasks, and for what is calibrated once a model."""

import re
from functools import lru_cache
from pathlib import Path

_NAMES = ("harbour_report", "observatory_archive", "orchard_study", "support_call")
_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "examples"


@lru_cache(maxsize=1)
def stored_sentences() -> tuple[tuple[str, ...], ...]:
    """The sentences of each text; headings and scraps are left out."""
    texts = [(_FOLDER / f"{name}.txt").read_text("utf-8") for name in _NAMES]
    return tuple(
        tuple(each for each in re.split(r"(?<=[.!?])\s+|\n+", text) if len(each.split()) > 4)
        for text in texts
    )
