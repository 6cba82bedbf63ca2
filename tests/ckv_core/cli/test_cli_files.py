"""Laws of the files that the command line reads and writes."""

import json
from pathlib import Path

import pytest

from ckv_core import cli
from ckv_core.cli import running
from tests.factories.models import tiny_model

pytestmark = pytest.mark.slow

TEXT = "The ferry left at nine. Nobody waved. "


@pytest.fixture
def context(tmp_path, monkeypatch) -> str:
    loading = "ckv_core.models.loading.load_model"
    monkeypatch.setattr(loading, lambda *_args, **_keywords: tiny_model("llama"))
    path = tmp_path / "context.txt"
    path.write_text(TEXT * 6, encoding="utf-8")
    return str(path)


def command(name: str, context: str, *more: str) -> list[str]:
    """The smallest run of a command."""
    chosen = "--method" if name == "sweep" else "--variant"
    budget = "--budgets" if name == "sweep" else "--budget"
    return [name, "--context", context, chosen, "snapkv", budget, "40", *more]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_only_a_line_feed_ends_a_line_of_the_prompts(capsys, context, tmp_path, separator):
    path, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    texts = [f"{TEXT * 4}one{separator}two", TEXT * 5]
    lines = [json.dumps({"context": text}, ensure_ascii=False) for text in texts]
    path.write_bytes("\r\n\r\n".join([*lines, ""]).encode())
    arguments = ["analyse", "--prompts", str(path), "--max-new-tokens", "1", "--json", str(out)]
    assert cli.main(arguments) == 0
    assert "2 prompts" in capsys.readouterr().out
    runs = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    read = ["".join(run["prompt"]["pieces"]) for run in runs]
    assert [text in prompt for text, prompt in zip(texts, read, strict=True)] == [True, True]


class ClosedPipe:
    """A stdout whose reader has gone, as after `| head -1`."""

    encoding = "utf-8"

    def write(self, _text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        """Nothing is held back."""


class Stderr:
    """What `main` closes so that the interpreter says nothing more."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The test's own stderr stays open."""


@pytest.mark.parametrize("name", ["compare", "sweep", "analyse"])
def test_the_json_is_written_though_nobody_reads_the_tables(context, tmp_path, monkeypatch, name):
    out = tmp_path / "out.json"
    monkeypatch.setattr("sys.stdout", ClosedPipe())
    monkeypatch.setattr("sys.stderr", Stderr())
    assert cli.main(command(name, context, "--json", str(out))) == 1
    assert json.loads(out.read_text(encoding="utf-8"))["schema"] == 1


@pytest.mark.parametrize("name", ["compare", "sweep", "analyse"])
def test_the_tables_are_printed_though_the_json_cannot_be_written(capsys, context, name):
    assert cli.main(command(name, context, "--json", "/dev/full")) == 1
    printed = capsys.readouterr()
    assert "snapkv" in printed.out
    assert "cannot be written: No space left on device." in printed.err


@pytest.mark.parametrize("name", ["compare", "sweep", "analyse"])
def test_json_on_stdout_comes_alone(capsys, context, name):
    assert cli.main(command(name, context, "--json", "-")) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1


@pytest.fixture
def three(context, tmp_path) -> tuple[list[str], Path]:
    """`analyse` of three prompts, of which the second is too long for the model."""
    path, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    texts = [TEXT * 4, "x " * 3_000, TEXT * 5]
    path.write_text("\n".join(json.dumps({"context": text}) for text in texts), encoding="utf-8")
    arguments = ["analyse", "--prompts", str(path), "--max-new-tokens", "1", "--json", str(out)]
    return arguments, out


def test_a_prompt_that_fails_does_not_lose_the_others(capsys, three):
    arguments, out = three
    assert cli.main(arguments) == 1
    printed = capsys.readouterr()
    assert "; 2 prompts of " in printed.out
    assert "prompts.jsonl line 2: " in printed.err
    assert printed.err.splitlines()[-1].startswith("error: 1 of 3 prompts failed, the first: ")
    assert len(out.read_text(encoding="utf-8").splitlines()) == 2


def test_a_run_is_in_the_file_as_soon_as_its_prompt_ends(three, monkeypatch):
    arguments, out = three
    real, lines = running.run, []

    def run(request, *more):
        lines.append(len(out.read_text(encoding="utf-8").splitlines()))
        if len(lines) == 3:
            raise KeyboardInterrupt
        return real(request, *more)

    monkeypatch.setattr(running, "run", run)
    assert cli.main(arguments) == 1
    assert lines == [0, 1, 1]
    assert json.loads(out.read_text(encoding="utf-8"))["schema"] == 1


@pytest.mark.parametrize(("parts", "measured"), [("none", set()), ("forced", {"forced"})])
def test_what_is_expensive_can_be_left_out(context, tmp_path, parts, measured):
    out = tmp_path / "out.json"
    assert cli.main(command("analyse", context, "--json", str(out), "--analyse", parts)) == 0
    (variant,) = json.loads(out.read_text(encoding="utf-8"))["variants"]
    assert {name.partition("_")[0] for name in variant["analysis"]} == measured


def test_only_a_prompts_own_error_names_its_file(capsys, context, tmp_path):
    assert cli.main(["analyse", "--context", context, "--variant", "snapkw"]) == 2
    assert capsys.readouterr().err.startswith("error: Unknown method 'snapkw'")
    empty = tmp_path / "empty.txt"
    empty.write_text(" ", encoding="utf-8")
    assert cli.main(["analyse", "--context", context, "--context", str(empty)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {empty}: The context is empty")
