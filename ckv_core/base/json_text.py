"""The one reader of JSON texts from strangers: bounded before an object is made of any of it.

A megabyte of `{}` becomes 32 times as much in memory, and parsing holds up the whole process.
What is large even within its bounds is read in a process of its own (`base/read_apart.py`).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from ckv_core.errors import ConfigError

# Strings whole (the last one may not end), brackets one by one, and all that stands between.
_PARTS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]|[^"\[\]{}]++', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")


class NoJsonError(ConfigError):
    """The text is not JSON; the message is a sentence's end, which says where or why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBounds:
    """Bounds of what a JSON text may consist of.

    Attributes:
        containers: objects and arrays.
        values: those, and numbers, strings, keys and words.
        depth: containers inside each other.
    """

    containers: int
    values: int
    depth: int = 32

    def read(self, text: str | bytes) -> object:
        """The value of a JSON text, in Python's types; raises as `documents`."""
        values = [*self.documents(text)]
        if len(values) != 1:
            raise NoJsonError("one value is expected")
        return values[0]

    def documents(self, text: str | bytes) -> Iterator[object]:
        """The values of JSON texts that follow one another, in Python's types.

        ConfigError where they would become more than the bounds allow, or have a key twice;
        NoJsonError where one is no JSON, or has a number that is infinite or far too long.
        """
        try:
            self.check(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
            text = text if isinstance(text, str) else text.decode("utf-8")
            at = _SPACE.match(text, text.startswith("\ufeff")).end()  # type: ignore[union-attr]  # may be empty
            while at < len(text):
                value, at = _DECODER.raw_decode(text, at)
                yield value
                at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # may be empty
        except json.JSONDecodeError as error:
            raise NoJsonError(f"line {error.lineno}, column {error.colno}") from None
        except UnicodeDecodeError as error:
            raise NoJsonError(f"byte {error.start:,} is not UTF-8") from None
        except (ValueError, RecursionError):
            raise NoJsonError("a number in it is too long") from None

    def check(self, text: bytes) -> int:
        """Count the values of a text in UTF-8; ConfigError where it has more than the bounds.

        Whether it is JSON is for the parser to say.
        """
        containers = values = depth = 0
        for match in _PARTS.finditer(text):
            part = match[0]
            is_opening, is_closing = part in (b"[", b"{"), part in (b"]", b"}")
            containers += is_opening
            depth += is_opening - is_closing
            values += 1 if part[:1] == b'"' else part.count(b",")
            if depth > self.depth:
                raise ConfigError(f"The JSON is nested deeper than {self.depth} levels.")
            if containers > self.containers:
                raise ConfigError(f"The JSON has over {self.containers:,} objects and arrays.")
            if values + containers > self.values:
                raise ConfigError(f"The JSON has over {self.values:,} values.")
        return values + containers


def _not_finite(name: str) -> NoReturn:
    raise NoJsonError(f"it holds {name}")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ConfigError(f"The JSON has the key {twice[:80]!r} twice; remove one.")
    return members


_DECODER = json.JSONDecoder(parse_constant=_not_finite, object_pairs_hook=_members)
