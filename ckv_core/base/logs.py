"""Log lines for operators, as text or JSON. None ever holds what people wrote.

An error's message may quote a prompt, and so may what other packages say. So errors appear as their
types and places, and messages of other packages as the place that they come from.
"""

import json
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ckv_core.base.terminal import plain

Style = Literal["text", "json"]
STYLES: tuple[Style, ...] = ("text", "json")
OURS = ("ckv_core", "storage", "ui")
FRAMES = 12
ALIKE = 5  # warnings and errors from one place, a minute
ALIKE_S = 60.0
LOGGER = logging.getLogger(__name__)


def fields(**values: object) -> dict[str, object]:
    """Values of a line beside its event, for the `extra` of a logger's call; no user text."""
    return {"fields": values}


def configure(style: Style, process: str) -> None:
    """Send all that this process logs, warns of and fails with to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(style, process))
    handler.addFilter(FewAlike())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    sys.excepthook = lambda _, error, __: _log_error("The process failed.", error)
    threading.excepthook = lambda args: _log_error("A thread failed.", args.exc_value)
    warnings.showwarning = _show_warning


def adopt_loggers() -> None:
    """Take the lines of packages that have set up handlers of their own meanwhile."""
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        if logger.handlers:
            logger.handlers.clear()
            logger.propagate = True


class FewAlike(logging.Filter):
    """Lets a few warnings of one kind and place through a minute, as strangers can cause many.

    The next one that passes tells how many did not.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[object, ...], tuple[float, int]] = {}  # since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        alike = (record.name, record.filename, record.lineno, *_origin(record))
        since, count = self._seen.get(alike, (record.created, 0))
        if record.created - since >= ALIKE_S:
            if count > ALIKE:
                given = getattr(record, "fields", {})
                record.fields = {**given, "left_out": count - ALIKE}
            since, count = record.created, 0
        self._seen[alike] = since, count + 1
        return count < ALIKE


class LineFormatter(logging.Formatter):
    """One line per record."""

    def __init__(self, style: Style, process: str) -> None:
        super().__init__()
        self._is_json = style == "json"
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The record as text or as a JSON object."""
        at = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        line = {
            "time": f"{at.isoformat(timespec='milliseconds')}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "event": _event(record),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1]:
            line |= _error(record.exc_info[1])
        return json.dumps(line, default=str) if self._is_json else _text(line)


def _origin(record: logging.LogRecord) -> tuple[object, ...]:
    """Type of a record's error, and where it arose."""
    error = record.exc_info[1] if record.exc_info else None
    places = list(traceback.walk_tb(error.__traceback__)) if error else []
    return (type(error), *((places[-1][0].f_code, places[-1][1]) if places else ()))


def _event(record: logging.LogRecord) -> str:
    if record.name.partition(".")[0] not in OURS:
        return f"A message of another package ({record.filename}:{record.lineno})."
    # An error among the arguments would bring its message along.
    if isinstance(record.args, Mapping) or not record.args:
        return str(record.msg)
    return str(record.msg) % tuple(
        type(arg).__name__ if isinstance(arg, BaseException) else arg for arg in record.args
    )


def _error(error: BaseException) -> dict[str, object]:
    """Types from the outermost error to its cause, and where it came from, innermost last."""
    kinds: list[str] = []
    at: BaseException | None = error
    while at is not None and len(kinds) < FRAMES:
        kinds.append(type(at).__name__)
        at = at.__cause__ or at.__context__
    places = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return {
        "error": " from ".join(kinds),
        "places": [f"{'/'.join(Path(p.filename).parts[-2:])}:{p.lineno} {p.name}" for p in places],
    }


def _text(line: Mapping[str, object]) -> str:
    """The first five values bare, the others with their names; the innermost place first."""
    texts = [
        " < ".join(map(str, reversed(value))) if isinstance(value, list) else str(value)
        for value in line.values()
    ]
    named = [f"{name}={text}" for name, text in zip([*line][5:], texts[5:], strict=True)]
    return plain(" ".join(" ".join([*texts[:5], *named]).splitlines()))


def _log_error(event: str, error: BaseException | None) -> None:
    LOGGER.error(event, exc_info=error)


def _show_warning(
    message: object,  # noqa: ARG001 - may quote what it warns of
    category: type[Warning],
    filename: str,
    lineno: int,
    *_: object,
    **__: object,
) -> None:
    place = "/".join(Path(filename).parts[-2:])
    LOGGER.warning("A %s was raised at %s:%d.", category.__name__, place, lineno)
