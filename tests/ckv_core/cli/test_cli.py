"""Laws of the command line: a user's mistake is exit code 2 and one clear line; files are whole."""

import errno
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from ckv_core import cli
from ckv_core.errors import OUT_OF_MEMORY, ModelError
from ckv_core.methods import METHODS, PARAMETERS
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.run_request import DEFAULT_MODEL
from tests.factories.models import tiny_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
TEXT = "The ferry left at nine. Nobody waved. "


@pytest.fixture
def context(tmp_path) -> str:
    path = tmp_path / "context.txt"
    path.write_text(TEXT * 6, encoding="utf-8")
    return str(path)


@pytest.fixture
def tiny(monkeypatch) -> LoadedModel:
    """Whatever model is asked for is this one."""
    loaded = tiny_model("llama")
    monkeypatch.setattr("ckv_core.models.loading.load_model", lambda *_, **__: loaded)
    return loaded


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and the one line of the error output."""
    code = cli.main(arguments)
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) <= 1, lines
    return code, lines[0] if lines else ""


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("compare --variant snapkw", "Did you mean 'snapkv'?"),
        ("compare --variant full+critical", "cannot apply to it"),
        ("compare --variant snapkv:sinks=4,budget=35", "sinks 4 + window 32"),
        ("compare --variant snapkv --variant snapkv", "listed twice"),
        ("compare --variant snapkv --budget many", "is not a number"),
        ("compare --variant snapkv --budget 8", "raise the budget to at least 32"),
        ("compare --max-new-tokens 0", "New tokens must be from 1"),
        (
            "compare --scenario other",
            "'--scenario': 'other' is not one of 'regular', 'context-only'",
        ),
        ("compare --max-new-tokens many", "Invalid value for '--max-new-tokens'"),
        ("compare --dtype int3", "wrong at dtype: one of auto, float32"),
        ("compare --nonsense", "No such option: --nonsense"),
        ("compare --json no/such/folder/out.json", "does not exist; create it first"),
        ("compare --ablation streaming_llm:budget=64", "has no ablation"),
        ("compare --analyse bounds,everything", "wrong at analysis[1]: one of bounds, forced"),
        ("compare --follow-up Why?", "need the scenario context-only"),
        ("compare --evidence", "Option '--evidence' requires an argument"),
        ("compare --budget 64,128", "at least one method that evicts"),
        ("compare --variant snapkv+critical --alpha 0,2", "alpha must be a number from 0 to 1"),
        ("compare --variant snapkv --budget 64,99 --max-new-tokens -1", "a number of at least 0"),
    ],
)
def test_a_wrong_argument_is_one_line(capsys, context, command, sentence):
    name, *arguments = command.split()
    code, line = run(capsys, name, "--context", context, *arguments)
    assert code == 2
    assert sentence in line


def test_several_budgets_and_alphas_say_what_they_cost_and_print_tables(capsys, context, tiny):
    arguments = ["--context", context, "--variant", "snapkv", "--variant", "snapkv+critical"]
    arguments += ["--budget", "40,80", "--alpha", "0,1"]
    assert cli.main(["compare", *arguments, "--max-new-tokens", "0"]) == 0
    printed = capsys.readouterr()
    assert re.search(r"^7 points on [\d,]+ prompt tokens: about ", printed.err, re.M)
    assert "Budget needed for equal quality" in printed.out
    assert "Token F1" not in printed.out
    scored = [*arguments, "--answer", "Nobody", "--max-new-tokens", "2"]
    assert cli.main(["compare", *scored]) == 0
    out = capsys.readouterr().out
    assert "7 of 7 texts were cut at" in out  # so none is scored
    assert "Token F1" not in out
    assert "Budget needed for equal quality" in out


def test_a_context_that_cannot_be_read_is_one_line(capsys, tmp_path):
    code, line = run(capsys, "compare", "--context", str(tmp_path / "none.txt"))
    assert (code, "cannot be read" in line) == (2, True)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Größe".encode("latin-1"))
    code, line = run(capsys, "compare", "--context", str(latin))
    assert (code, "is not UTF-8" in line) == (2, True)


def test_a_model_that_fails_is_one_line(capsys, context, monkeypatch):
    failing = Mock(side_effect=ModelError("There is no such model."))
    monkeypatch.setattr("ckv_core.models.loading.load_model", failing)
    assert run(capsys, "compare", "--context", context) == (2, "error: There is no such model.")


def test_an_answer_that_the_prompt_does_not_hold_is_said(capsys, context, tiny):
    said = "note: the reference answer does not occur in the compressed prompt"
    arguments = ["--context", context, "--max-new-tokens", "1", "--variant", "snapkv", "--budget"]
    for budget in ("40", "40,50"):
        command = ["compare", *arguments, budget, "--answer"]
        assert cli.main([*command, "Zanzibar"]) == 0
        assert said in capsys.readouterr().out
        assert cli.main([*command, "the  FERRY"]) == 0
        assert said not in capsys.readouterr().out


def test_evidence_that_is_not_in_the_prompt_is_one_line(capsys, context, tiny):
    code, line = run(capsys, "compare", "--context", context, "--evidence", "Zanzibar")
    assert code == 2
    assert "--evidence 'Zanzibar' does not occur in the compressed prompt" in line


def test_follow_ups_are_printed_with_their_agreement(capsys, context, tiny):
    arguments = ["compare", "--context", context, "--scenario", "context-only"]
    arguments += ["--question", "Who?", "--follow-up", "And then?", "--max-new-tokens", "2"]
    assert cli.main([*arguments, "--variant", "full", "--variant", "snapkv:budget=40"]) == 0
    told = r"> And then\? \(\d+ % as the full cache before a difference\)"
    assert re.search(told, capsys.readouterr().out)


def test_methods_and_models_are_listed_with_every_key_and_without_torch():
    code = "import os, sys; from ckv_core.cli import main; main(['methods']); main(['models']); "
    code += "assert not {'torch', 'transformers', 'accelerate'} & set(sys.modules); "
    code += "assert os.environ['OMP_WAIT_POLICY'] == 'PASSIVE', 'threads spin beside other work'"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in [*(method.name for method in METHODS), *PARAMETERS, DEFAULT_MODEL]:
        assert name in done.stdout
    agnostic = {method.name for method in METHODS if method.regime == "query-agnostic"}
    assert {"streaming_llm", "keydiff"} <= agnostic
    assert "snapkv" not in agnostic
    assert done.stdout.count("regime: query-agnostic") == len(agnostic)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")],
    ids=["python", "torch"],
)
def test_no_memory_is_one_line(capsys, context, tiny, monkeypatch, error):
    monkeypatch.setattr(tiny.model, "forward", Mock(side_effect=error))
    arguments = ("compare", "--context", context, "--budget", "40")
    assert run(capsys, *arguments) == (1, f"error: {OUT_OF_MEMORY}")


# --- files that are written and read ------------------------------------------------------


def command(name: str, context: str, *more: str) -> list[str]:
    """The smallest run of a command."""
    return [name, "--context", context, "--variant", "snapkv", "--budget", "40", *more]


class ClosedPipe(io.StringIO):
    """A stdout whose reader has gone, as after `| head -1`."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_json_and_tables_do_not_wait_for_each_other(capsys, context, tiny, tmp_path, monkeypatch):
    out = tmp_path / "out.json"
    assert cli.main(command("compare", context, "--json", "-")) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1
    assert cli.main(command("compare", context, "--json", "/dev/full")) == 1
    printed = capsys.readouterr()
    assert "snapkv" in printed.out
    assert "cannot be written: No space left on device." in printed.err
    monkeypatch.setattr("sys.stdout", ClosedPipe())
    with pytest.raises(SystemExit, match="1"):
        cli.main(command("compare", context, "--json", str(out)))
    assert json.loads(out.read_text(encoding="utf-8"))["schema"] == 1
