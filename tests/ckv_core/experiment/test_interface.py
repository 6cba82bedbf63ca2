"""`ckv_core.compare` in Python gives what the command line gives, on the default model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ckv_core as ckv
from ckv_core import cli
from ckv_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
TEXT = "The ferry left at nine. Nobody waved. " * 12


def test_importing_the_package_loads_nothing_heavy():
    heavy = {"torch", "numpy", "pandas", "typer", "ckv_core.engine"}
    code = f"import sys, ckv_core; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_python_and_the_command_line_give_the_same_result(
    real_model, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("ckv_core.models.loading.load_model", lambda *_, **__: real_model)
    asked = {"max_new_tokens": 4, "answer": "nine"}
    run = ckv.compare(TEXT, "When?", methods=["snapkv", "knorm"], budgets=["25%"], **asked)
    run.save(tmp_path / "python.json")
    (tmp_path / "text.txt").write_text(TEXT)
    arguments = ["compare", "--context", str(tmp_path / "text.txt"), "--question", "When?"]
    arguments += ["--budget", "25%", "--max-new-tokens", "4", "--answer", "nine"]
    for spec in ("full", "snapkv", "knorm"):
        arguments += ["--variant", spec]
    assert cli.main([*arguments, "--json", str(tmp_path / "command.json")]) == 0
    assert run.verdict in capsys.readouterr().out
    one, other = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("python", "command")
    )
    assert untimed(one) == untimed(other)
    table = run.table()
    assert list(table["spec"]) == ["full", "snapkv:budget=25%", "knorm:budget=25%"]
    kept = [variant["receipt"]["retained_entries"] for variant in one["variants"]]
    assert list(table["retained_entries"]) == kept


def untimed(value):
    """A result without what no two runs share."""
    if isinstance(value, dict):
        left_out = ("timings_ms", "memory")
        return {key: untimed(each) for key, each in value.items() if key not in left_out}
    return [untimed(each) for each in value] if isinstance(value, list) else value


def test_a_wrong_argument_is_one_sentence():
    with pytest.raises(ConfigError, match="Did you mean 'snapkv'"):
        ckv.compare(TEXT, methods=["snapkw"])
