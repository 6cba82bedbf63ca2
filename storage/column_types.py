"""Column types that mean the same on SQLite and PostgreSQL."""

import re
from datetime import UTC, datetime

from sqlalchemy import DateTime, Dialect, Text
from sqlalchemy.types import TypeDecorator

ESCAPE = "\ue000"
_NOT_STORABLE = re.compile(f"[\x00\ud800-\udfff{ESCAPE}]")
_ESCAPED = re.compile(f"{ESCAPE}([0-9a-f]{{4}})")


class UtcDateTime(TypeDecorator[datetime]):
    """Aware datetimes, kept in UTC; SQLite itself knows no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Convert to UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A stored time needs a time zone.")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Say that it is UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class AnyText(TypeDecorator[str]):
    r"""Any Python text, byte for byte.

    PostgreSQL's text cannot hold NUL and UTF-8 cannot hold lone surrogates. Each such character
    is stored as U+E000 and four hex digits (U+E000 itself too), so what is read equals what was
    written. All other text is stored as it is and can be searched as it is.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        """Escape what a database cannot hold."""
        if value is None:
            return None
        return _NOT_STORABLE.sub(lambda match: f"{ESCAPE}{ord(match[0]):04x}", value)

    def process_result_value(self, value: str | None, _dialect: Dialect) -> str | None:
        """Undo the escapes."""
        if value is None or ESCAPE not in value:
            return value
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
