"""Log lines: one per record, with errors as types and places, never with their words."""

import json
import logging
import subprocess
import sys

import pytest

from ckv_core.base.logs import ALIKE, ALIKE_S, FewAlike, LineFormatter, fields

MARK = "SECRET-MARK"
FAILING = f"""
import logging, sys, threading, warnings
from ckv_core.base import logs
logs.configure(sys.argv[1], "app")
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


def test_of_many_warnings_from_one_place_a_few_are_written():
    few = FewAlike()
    flood = [record("refused") for _ in range(1000)]
    assert [few.filter(each) for each in flood].count(True) == ALIKE
    elsewhere = record("refused", name="ui.other")
    assert few.filter(elsewhere), "another place has a count of its own"
    assert few.filter(record("refused", error=raised())), "and so has an error"
    later = record("refused", run="abc")
    later.created = flood[0].created + ALIKE_S
    assert few.filter(later)
    assert later.fields == {"run": "abc", "left_out": 1000 - ALIKE}
    told = logging.LogRecord(
        "ui.services.services", logging.INFO, "/a/b/c.py", 7, "run ended", (), None
    )
    assert all(few.filter(told) for _ in range(100))


def test_a_json_line_has_time_level_event_and_fields():
    line = json.loads(LineFormatter("json", "app").format(record("run ended", run="abc", ran_ms=5)))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "process": "app",
        "logger": "ui.services.services",
        "event": "run ended",
        "run": "abc",
        "ran_ms": 5,
    }


def test_a_text_line_reads_the_same():
    line = LineFormatter("text", "app").format(record("run ended", run="abc", ran_ms=5))
    assert line.endswith("Z warning app ui.services.services run ended run=abc ran_ms=5")


@pytest.mark.parametrize("style", ["text", "json"])
def test_errors_are_types_and_places(style):
    error = raised()
    line = LineFormatter(style, "app").format(record("Run %s: %s", "abc", error, error=error))
    assert "Run abc: ValueError" in line
    assert "ValueError from KeyError" in line
    assert "base/test_logs.py" in line
    assert MARK not in line
    assert "\n" not in line


def test_what_other_packages_say_is_only_placed():
    line = LineFormatter("text", "app").format(record(f"said {MARK}", name="asyncio"))
    assert line.endswith("asyncio A message of another package (c.py:7).")


@pytest.mark.parametrize("style", ["text", "json"])
def test_nothing_that_a_process_prints_of_failures_holds_their_words(style):
    ran = subprocess.run(
        [sys.executable, "-c", FAILING, style],
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
    if style == "json":
        assert all(json.loads(line)["time"] for line in lines)
