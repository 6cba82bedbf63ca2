"""CSV text that no spreadsheet runs and every reader takes line by line."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from typing import SupportsFloat

import numpy as np

Cell = str | int | float | None
# What some reader takes for the end of a line, drops, or cannot encode. `csvField` of
# assets/scripts/dom.js has the same three rules.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# A spreadsheet runs a cell that starts like this, full-width forms included; where its language
# has the comma in numbers, a semicolon starts a cell too.
_FORMULA = re.compile(r"(^|;)(?=[\s\u200b-\u200f\u2060\ufeff]*[-=+@\uff0d\uff1d\uff0b\uff20])")
_NUMBER = re.compile(r"-[0-9.,]+\s*%?")


def _safe_text(text: str) -> str:
    """The text on one line, control characters escaped, an apostrophe before what may run."""
    line = _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return line if _NUMBER.fullmatch(line) else _FORMULA.sub(r"\1'", line)


def number(value: SupportsFloat) -> float | None:
    """A plain number; None (an empty cell) for NaN, which marks layers not evicted."""
    plain = float(value)
    return None if math.isnan(plain) else plain


def short(value: np.float32) -> float | None:
    """A number in as few digits as tell it from its neighbours: 0.35 and not 0.3499999940."""
    return None if np.isnan(value) else float(str(value))


def csv_text(head: Sequence[str], rows: Iterable[tuple[Cell, ...]]) -> str:
    """CSV text, one line per row whatever the texts hold; no spreadsheet runs them as formulas."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(head)
    writer.writerows([_safe_text(c) if isinstance(c, str) else c for c in row] for row in rows)
    return out.getvalue()
