"""Reads untrusted JSON value by value; what is wrong is named by its path."""

import math
import re
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from ckv_core.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JsonField:
    """One value of a decoded JSON text and where it stood.

    All methods that read the value raise ConfigError if it is not what they are asked for.

    Attributes:
        path: e.g. `variants[1].receipt.cache_bytes`; empty at the top.
        whole: what it is a part of, for the message.
    """

    value: object
    path: str = ""
    whole: str = "result JSON"

    def fail(self, expected: str) -> NoReturn:
        """Refuse the value.

        Raises:
            ConfigError: always.
        """
        try:
            got = reprlib.repr(self.value)
        except ValueError:  # Python writes no number of over 4,300 digits
            got = "a number that is too long"
        self._refuse(f"{expected}, got {got}")

    def __getitem__(self, key: str) -> "JsonField":
        """A member of an object; one that is absent reads as null."""
        return self._part(self._members().get(key), f"{self.path}.{key}" if self.path else key)

    @property
    def absent(self) -> bool:
        """Null or not there."""
        return self.value is None

    def maybe(self, read: Callable[["JsonField"], T]) -> T | None:
        """None if absent, else what `read` makes of it."""
        return None if self.absent else read(self)

    def members(self, most: int) -> dict[str, "JsonField"]:
        """All members of an object of at most `most`."""
        members = self._members()
        if len(members) > most:
            self.fail(f"at most {most} members are allowed")
        return {key: self[self._part(key, f"{self.path} key").text(64)] for key in members}

    def items(self, most: int, length: int | None = None) -> list["JsonField"]:
        """The values of an array of at most `most`, or of exactly `length`."""
        if not isinstance(self.value, list):
            self.fail("an array is expected")
        if length is not None and len(self.value) != length:
            self._refuse(f"{length} values are expected, got {len(self.value)}")
        if len(self.value) > most:
            self._refuse(f"at most {most} values are allowed, got {len(self.value)}")
        return [self._part(item, f"{self.path}[{i}]") for i, item in enumerate(self.value)]

    def integers(self, low: int, high: int, most: int) -> tuple[int, ...]:
        """An array of whole numbers; quick, as it may be long."""
        values = self.value
        if (
            not isinstance(values, list)
            or len(values) > most
            or not all(type(value) is int and low <= value <= high for value in values)
        ):
            return tuple(item.integer(low, high) for item in self.items(most))
        return tuple(values)

    def integer(self, low: int, high: int) -> int:
        value = self.value
        if type(value) is not int or not low <= value <= high:
            self.fail(f"a whole number from {low} to {high} is expected")
        return value

    def one_of(self, *choices: str) -> str:
        """One of these words."""
        if not isinstance(self.value, str) or self.value not in choices:
            self.fail(f"one of {', '.join(choices)} is expected")
        return self.value

    def number(self, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number from low to high."""
        value = self.value
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail("a number is expected")
        # A whole number may be too big for a float.
        if abs(value) > 1e300 or not low <= value <= high:
            self.fail(f"a finite number from {low:g} to {high:g} is expected")
        return float(value)

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            self.fail("true or false is expected")
        return self.value

    def text(self, most: int, pattern: str | None = None) -> str:
        """Valid Unicode of at most `most` characters; all of it matches `pattern` if given."""
        if not isinstance(self.value, str):
            self.fail("text is expected")
        if len(self.value) > most:
            self._refuse(f"at most {most} characters are allowed, got {len(self.value)}")
        if re.search("[\ud800-\udfff]", self.value):
            self.fail("valid Unicode is expected")
        if pattern is not None and not re.fullmatch(pattern, self.value):
            self.fail(f"text of the form {pattern} is expected")
        return self.value

    def text_or_number(self, most: int) -> str:
        """A text, or a finite number as one, of at most `most` characters."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.text(most)
        if not abs(value) <= 1e300 or len(f"{value}") > most:
            self.fail(f"a finite number of at most {most} digits is expected")
        return f"{value}"

    def _part(self, value: object, path: str) -> "JsonField":
        return JsonField(value, path, self.whole)

    def _members(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            self.fail("an object is expected")
        return self.value

    def _refuse(self, sentence: str) -> NoReturn:
        raise ConfigError(f"The {self.whole} is wrong at {self.path or 'its top'}: {sentence}.")
