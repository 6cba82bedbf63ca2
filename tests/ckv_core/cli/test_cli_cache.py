"""`cache`: kept, asked, listed, taken elsewhere; errors are one line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from ckv_core import cli
from ckv_core.records.kept_caches import KeptFolder
from tests.reference.report import report

pytestmark = pytest.mark.slow

SPEC = "adakv+critical:budget=48,store=int8"
QUESTIONS = ("Who counted the vessels?", "Where was the harbour?")


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("CKV_HOME", str(folder))
    monkeypatch.setenv("CKV_DEVICE", "cpu")
    return folder


@pytest.fixture
def context(tmp_path) -> str:
    path = tmp_path / "context.txt"
    path.write_text(report()[2000:2330], encoding="utf-8")
    return str(path)


def test_what_is_kept_answers_as_the_comparison_does(home, model_folder, context, capsys):
    def printed(*arguments: str) -> str:
        assert cli.main([*arguments, "--json", "-"]) == 0
        return capsys.readouterr().out

    of_context = ("--context", context, "--variant", SPEC, "--model", model_folder)
    document = json.loads(printed("cache", "keep", "report", *of_context))
    assert document["name"] == "report"
    assert document["receipt"]["receipt"]["retained_entries"] == 3 * 2 * 48
    asked = [word for question in QUESTIONS for word in ("--question", question)]
    new = ["--max-new-tokens", "9", "--ignore-eos"]
    told = printed("cache", "ask", "report", *asked, *new)
    answers = [json.loads(line) for line in told.splitlines()]
    assert [answer["question"] for answer in answers] == list(QUESTIONS)
    for answer in answers:
        question = ("--question", answer["question"], "--scenario", "context-only")
        compared = printed("compare", *of_context, *question, *new)
        (variant,) = json.loads(compared)["variants"]
        for member in ("token_ids", "text", "stopped"):
            assert answer[member] == variant[member]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output, and the one line of the error output."""
    code = cli.main(["cache", *arguments])
    told = capsys.readouterr()
    assert len(told.err.strip().splitlines()) <= 1
    return code, told.out, told.err


def test_a_cache_goes_out_and_comes_in_and_has_its_names(
    home, model_folder, tmp_path, context, capsys
):
    assert "No cache is kept" in run(capsys, "list")[1]
    keep = ("keep", "a b", "--context", context, "--variant", SPEC, "--model", model_folder)
    code, out, _ = run(capsys, *keep)
    assert code == 0
    assert "288" in out
    assert SPEC in out
    code, _, error = run(capsys, *keep)
    assert code == 2
    assert "is kept already" in error
    outside = tmp_path / "out.safetensors"
    assert "whole context" in run(capsys, "export", "a b", str(outside))[1]
    assert "is there already" in run(capsys, "export", "a b", str(outside))[2]
    with safe_open(outside, framework="pt") as file:
        assert bytes(file.get_tensor("context").to(torch.uint8).tolist()).decode() in report()
    assert run(capsys, "import", str(outside), "copy")[0] == 0
    assert (home / "caches" / "copy.safetensors").read_bytes() == outside.read_bytes()
    assert run(capsys, "delete", "copy")[0] == 0
    assert [entry.name for entry in KeptFolder().entries()] == ["a b"]
    listed = json.loads(run(capsys, "list", "--json", "-")[1])
    assert [each["name"] for each in listed] == ["a b"]


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".x", "a\n", "x" * 65, "ä", "x "])
def test_names_that_are_no_names_are_refused(home, capsys, name):
    for action, *more in (["delete"], ["ask", "--question", "What?"], ["export", "x"]):
        code, _, error = run(capsys, action, name, *more)
        assert code == 2
        assert "A cache's name" in error


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("ask", "none", "--question", "What?"), "No cache is kept under the name 'none'"),
        (("delete", "none"), "No cache is kept"),
        (("import", "no-such-file", "x"), "cannot be read"),
        (("import", __file__, "x"), "no kept cache"),
        (("keep", "x", "--context", __file__, "--variant", "h2o"), "evicts while it"),
        (("keep", "x", "--context", __file__, "--variant", "nothing"), "nothing"),
        (("keep", "x", "--context", __file__), "--variant"),
    ],
)
def test_a_wrong_argument_is_one_line(home, capsys, arguments, sentence):
    code, _, error = run(capsys, *arguments)
    assert code in (1, 2)
    assert sentence in error
    assert not list(home.glob("caches/*"))


def test_owners_see_their_own(home):
    ann, bob, nobody = (KeptFolder(owner) for owner in ("ann", "../bob", None))
    paths = {folder.free("x") for folder in (ann, bob, nobody)}
    assert len(paths) == 3
    assert all(path.is_relative_to(home / "caches") for path in paths)
    for path in paths:
        path.write_bytes(b"spoilt")
    assert [entry.record for entry in nobody.entries()] == [None]
    ann.delete("x")
    assert (ann.entries(), len(bob.entries())) == ([], 1)
