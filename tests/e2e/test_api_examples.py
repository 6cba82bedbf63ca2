"""The first examples of docs/api.md on the default model, which refuses what cannot be run."""

import os
import re
import subprocess

from tests.e2e.app_runner import ROOT, App

TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:7860"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_comparison_and_the_sweep_in_python_print_their_figures(app: App, capsys) -> None:
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks("python")[:2]:
        exec(compile(block.replace(ADDRESS, app.url), "docs/api.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("done") for line in printed)
    assert sum(line.startswith(("Full cache ", "SnapKV ")) for line in printed) == 3
    points = [line.split() for line in printed if line.startswith("snapkv")]
    assert len(points) == 2 + 4  # methods without alpha, and with two of them, at two budgets
    assert all(float(kl) > 0 and float(final) > 0 for _, kl, final in points)


def test_the_run_by_curl_ends_with_texts(app: App, tmp_path) -> None:
    block = blocks("bash")[0].replace(ADDRESS, app.url)
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path,
        env={**os.environ, "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert '"state": "done"' in ran.stdout.replace('":"', '": "')
    assert "was chosen" not in ran.stdout  # the budget holds more than the window
