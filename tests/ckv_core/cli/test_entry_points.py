"""Another package's parts are there on the command line and in the app; a broken one harms none."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from ckv_core import cli
from ckv_core.methods import ENTRY_POINTS, METHODS
from tests.factories.models import tiny_model

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "tests" / "example_package"


def run(*arguments: str, package: Path = PACKAGE) -> subprocess.CompletedProcess[str]:
    """A process that has a package besides."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(package)])}
    command, pipes = [sys.executable, *arguments], {"capture_output": True, "text": True}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, **pipes)
    assert done.returncode == 0, done.stderr
    return done


def test_a_package_brings_a_method_to_the_command_line_and_the_pages():
    done = run(
        "-c",
        "import sys\n"
        "from ckv_core.cli import main\n"
        "from ui.compare.offers import variant_choices\n"
        "main(['methods'])\n"
        "assert ('Value size', 'value_size') in variant_choices()\n"
        "assert 'torch' not in sys.modules\n",
    )
    assert "value_size [+critical]" in done.stdout


@pytest.mark.slow
def test_a_packages_method_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(METHODS, "_methods", dict(METHODS._methods))
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.setattr("ckv_core.models.loading.load_model", lambda *_, **__: tiny_model("llama"))
    (point,) = entry_points(group=ENTRY_POINTS)
    point.load()
    text, result = tmp_path / "text.txt", tmp_path / "result.json"
    text.write_text("The ferry left at nine. Nobody waved. " * 12, encoding="utf-8")
    arguments = ["compare", "--context", str(text), "--budget", "40", "--max-new-tokens", "2"]
    arguments += ["--variant", "value_size", "--variant", "value_size+critical"]
    assert cli.main([*arguments, "--json", str(result)]) == 0
    plain, critical = json.loads(result.read_text(encoding="utf-8"))["variants"]
    assert plain["receipt"]["retained_entries"] == plain["receipt"]["requested_entries"] > 0
    assert critical["spec"].startswith("value_size+critical")


def test_a_package_that_cannot_be_loaded_is_told_of_and_harms_no_other(tmp_path):
    information = tmp_path / "broken_parts-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[criticalkv.parts]\nnone = no_such_module\n")
    done = run("-m", "ckv_core", "methods", package=tmp_path)
    assert "snapkv" in done.stdout
    assert "The parts of 'no_such_module' cannot be loaded" in done.stderr
