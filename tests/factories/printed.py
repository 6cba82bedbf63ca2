"""What the command line prints of made-up runs, and its tables as cells."""

import re
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from ckv_core import cli
from ckv_core.records.events import RunResult
from ckv_core.records.run_request import RunRequest
from tests.factories.runs import PROMPT

LOADED = SimpleNamespace(parameters=None)


def printed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    *results: RunResult,
) -> str:
    """What a command prints when its runs come out like this, one after another."""
    left = list(results)

    def run(request: RunRequest, *_arguments: object) -> RunResult:
        result = left.pop(0)
        result.kind = request.kind
        return result

    monkeypatch.setattr("ckv_core.cli.running.load", lambda _request: (LOADED, 0.0))
    monkeypatch.setattr("ckv_core.cli.running.run", run)
    monkeypatch.setattr("ckv_core.cli.running.tokenised", lambda *_arguments: PROMPT)
    assert cli.main(arguments) == 0
    assert not left
    return capsys.readouterr().out


def table(out: str, title: str) -> dict[str, dict[str, str]]:
    """Cells by the first column and the head of the table whose title begins like this."""
    (found,) = [part for part in out.split("\n\n") if f"\n{part}".count(f"\n{title}")]
    lines = f"\n{found}".split(f"\n{title}")[1].splitlines()[1:]
    rows = [re.split(r" {2,}", line) for line in lines if "  " in line]
    head, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}
