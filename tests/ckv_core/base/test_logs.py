"""Log lines: one per record, with errors as types and places, never with their words."""

import logging
import subprocess
import sys

from ckv_core.base.logs import LineFormatter, fields

MARK = "SECRET-MARK"
FAILING = f"""
import logging, sys, threading, warnings
from ckv_core.base import logs
logs.configure("app")
warnings.warn("about {MARK}")
logging.getLogger("other.package").error("said %s", "{MARK}")
logging.getLogger("other.package").debug("not shown")
threading.Thread(target=lambda: int("{MARK}")).start()
handler = logging.StreamHandler(sys.stderr)
logging.getLogger("late.package").addHandler(handler)
logging.getLogger("late.package").propagate = False
logs.adopt_loggers()
logging.getLogger("late.package").warning("said {MARK}")
raise ValueError("{MARK}")
"""


def record(message, *args, error=None, name="ui.services.services", **values):
    info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord(name, logging.WARNING, "/a/b/c.py", 7, message, args, info)
    made.fields = fields(**values)["fields"]
    return made


def raised():
    try:
        try:
            {}[MARK]
        except KeyError as error:
            raise ValueError(MARK) from error
    except ValueError as error:
        return error


def test_a_line_has_time_level_event_and_fields():
    line = LineFormatter("app").format(record("run ended", run="abc", ran_ms=5))
    assert line.endswith("Z warning app ui.services.services run ended run=abc ran_ms=5")


def test_errors_are_types_and_places():
    error = raised()
    line = LineFormatter("app").format(record("Run %s: %s", "abc", error, error=error))
    assert "Run abc: ValueError" in line
    assert "ValueError from KeyError" in line
    assert "base/test_logs.py" in line
    assert MARK not in line
    assert "\n" not in line


def test_what_other_packages_say_is_only_placed():
    line = LineFormatter("app").format(record(f"text {MARK}", name="asyncio"))
    assert line.endswith("asyncio A message of another package (c.py:7).")


def test_nothing_that_a_process_prints_of_failures_holds_their_words():
    ran = subprocess.run(
        [sys.executable, "-c", FAILING],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    lines = ran.stderr.splitlines()
    assert MARK not in ran.stderr + ran.stdout
    assert len(lines) == 5
    for error in ("UserWarning", "ValueError"):
        assert error in ran.stderr
