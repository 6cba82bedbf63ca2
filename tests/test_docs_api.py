"""The examples in docs/how-to/programs.md run as they stand, against a served app.

Its worker plays scripts and refuses no budget; tests/e2e/test_default_model.py has a real one.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ui.api.endpoints import STOPPING

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "how-to" / "programs.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:7860"
# Examples of an app with logins; they hold the password of served_app's ann.
LOGIN = "ann-secret"


@pytest.fixture(scope="module")
def addresses(open_app, team_app):
    """Address of an app by whether it has logins."""
    return {False: open_app.url, True: team_app.url}


def blocks(language: str, addresses: dict[bool, str]) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert all(ADDRESS in block or "client.predict" in block for block in found)
    return [block.replace(ADDRESS, addresses.get(LOGIN in block, "")) for block in found]


def run_by_bash(block: str, folder: Path) -> str:
    """What it printed; it must succeed."""
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=folder,
        env={**os.environ, "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_python_examples_run(addresses, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    found = blocks("python", addresses)
    assert len(found) == 6
    for block in found:
        exec(compile(block, "docs/how-to/programs.md", "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"^done \n.* (True|None) nine$", printed, re.MULTILINE)
    assert STOPPING in printed
    assert re.search(r"^cancelled Cancelled on request\. \[", printed, re.MULTILINE)
    (found,) = re.findall(r"^(\d+) \['(.*)'\]$", printed, re.MULTILINE)
    assert int(found[0]) == len(found[1].split("', '")) >= 2, "the first run and the sweep"
    assert "'compare', 'get_run', 'cancel', 'list_runs', 'export_run'" in printed
    assert "isError=False" in printed
    assert json.loads((tmp_path / "result.json").read_bytes())["variants"][0]["text"] == "nine"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_examples_run(addresses, tmp_path):
    found = blocks("bash", addresses)
    assert len(found) == 2
    printed = "".join(run_by_bash(block, tmp_path) for block in found)
    assert '"state":"done"' in printed.replace(" ", "")
    assert (tmp_path / "bundle.zip").read_bytes()[:2] == b"PK"
    assert (tmp_path / "result.json").stat().st_size > 100
