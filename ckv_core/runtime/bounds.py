"""What the field of a record may hold when it is read from a file, as metadata of its type.

`Annotated[int, Within(0, 9)]` is an `int` to all other code; `results/codec.py` reads by it.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Within:
    """A number from low to high, both included.

    Attributes:
        high: a number, or the name of a member read before: its number, or its length.
    """

    low: float = -math.inf
    high: float | str = math.inf


@dataclass(frozen=True, slots=True)
class Measured:
    """A number that may be infinite or unknown: null is NaN, infinities are texts.

    Attributes:
        most: of a finite one, either sign.
    """

    most: float


@dataclass(frozen=True, slots=True)
class Chars:
    """Text of at most that many characters; all of it matches `pattern` if there is one."""

    most: int
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Many:
    """An array or object of at most `most` members.

    Attributes:
        most: a number, or the name of a member read before: then exactly as many as that has.
        ascending: each whole number above the one before.
    """

    most: int | str
    ascending: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """A float32 array.

    Attributes:
        names: of the members read before that give its sizes; a row of NaN is null.
        low: of every value; then none is NaN or infinite.
    """

    names: tuple[str, ...]
    low: float | None = None


@dataclass(frozen=True, slots=True)
class Needed:
    """Refused where it is missing, although the record has a default."""
