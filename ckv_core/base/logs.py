"""Log lines for operators. None ever holds what people wrote.

An error's message may quote a prompt, and so may what other packages say. So errors appear as their
types and places, and messages of other packages as the place that they come from.
"""

import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from ckv_core.base.terminal import plain

OURS = ("ckv_core", "storage", "ui")
FRAMES = 12
LOGGER = logging.getLogger(__name__)


def fields(**values: object) -> dict[str, object]:
    """Values of a line beside its event, for the `extra` of a logger's call; no user text."""
    return {"fields": values}


def configure(process: str) -> None:
    """Send all that this process logs, warns of and fails with to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(process))
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


class LineFormatter(logging.Formatter):
    """One line per record."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, process, logger and event, then fields with their names."""
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
        return _text(line)


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
