"""Bounds on JSON texts from strangers, checked before an object is made of any of it.

A megabyte of `{}` becomes 32 times as much in memory, and parsing holds up the whole process.
"""

import re
from dataclasses import dataclass

from ckv_core.errors import ConfigError

# Strings whole (the last one may not end), brackets one by one, and all that stands between.
_PARTS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]|[^"\[\]{}]++', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBounds:
    """What a JSON text may consist of at most.

    Attributes:
        containers: objects and arrays.
        values: those, and numbers, strings, keys and words.
        depth: containers inside each other.
    """

    containers: int
    values: int
    depth: int = 32

    def check(self, text: bytes) -> None:
        """Refuse a text in UTF-8 with more; whether it is JSON is for the parser to say.

        Raises:
            ConfigError: it has more.
        """
        containers = values = depth = 0
        for match in _PARTS.finditer(text):
            part = match[0]
            if part in (b"[", b"{"):
                containers += 1
                depth += 1
            elif part in (b"]", b"}"):
                depth -= 1
            values += 1 if part[:1] == b'"' else part.count(b",")
            if depth > self.depth:
                raise ConfigError(f"The JSON is nested deeper than {self.depth} levels.")
            if containers > self.containers:
                raise ConfigError(f"The JSON has over {self.containers:,} objects and arrays.")
            if values + containers > self.values:
                raise ConfigError(f"The JSON has over {self.values:,} values.")
