"""Hostile text on the terminal: shown, never obeyed."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.base.terminal import plain, say
from ckv_core.cli import main
from ckv_core.cli.tables import print_rows
from ckv_core.errors import ModelError
from tests.factories.models import saved_model

CLEAR = "\x1b[2J\x1b]0;owned\x07"


@given(st.text())
def test_nothing_that_commands_a_terminal_is_left(text):
    shown = plain(text)
    bidi = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    for character in shown:
        assert character in "\n\t" or unicodedata.category(character) != "Cc"
        assert unicodedata.bidirectional(character) not in bidi
    assert plain(shown) == shown


def test_what_people_write_stays_as_it_is():
    text = "Zürich 你好 \U0001f642\u200d\U0001f9d1 שלום\tone\ntwo"
    assert plain(text) == text


def test_what_the_encoding_lacks_is_a_code_and_no_traceback(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, "ascii"))
    say("naïve \U0001f642 \ud800")
    assert raw.getvalue() == b"na\\xefve \\U0001f642 \\ud800\n"


def test_a_table_is_as_wide_as_what_is_shown(capsys):
    print_rows(("name", "n"), [("a\x1b", "1"), ("b", "2")])
    assert capsys.readouterr().out == "name   n\na\\x1b  1\nb      2\n"


def test_a_table_shows_markup_as_text_and_is_cut_only_where_a_terminal_is_too_narrow(
    capsys, monkeypatch
):
    head, row = ("name", "first figure", "second", "third"), ("[bold]x[/]" * 3, "1.5", "2", "你好")
    print_rows(head, [row], "title")
    title, names, cells = capsys.readouterr().out.splitlines()[1:]
    assert (title, names.split("  ")[-3:]) == ("title", ["first figure", "second", "third"])
    assert cells == f"{row[0]}           1.5       2   你好"
    monkeypatch.setattr("ckv_core.cli.tables.terminal_width", lambda: 55)
    print_rows(head, [row])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", row[0]] * 2
    assert lines[0].endswith("first figure  second")
    assert lines[3].endswith("你好")


@pytest.mark.parametrize("command", [["compare", "--variant", "full"], ["models"]])
def test_an_error_shows_the_models_name_and_its_codes(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "models" / CLEAR.replace("/", "")
    folder.mkdir(parents=True)
    (folder / "x.gguf").touch()
    (tmp_path / "context.txt").write_text("A context.")
    if command[0] == "compare":
        command = [*command, "--context", str(tmp_path / "context.txt"), "--model", folder.name]
    main(command)
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\\x1b" in said.out + said.err


TEMPLATES = {
    "raises": "{{ raise_exception('no\x1b[2J user') }}",
    "undefined": "{{ messages[0].nothing.at_all }}",
    "syntax": "{% for %}",
    "unsafe": "{{ ''.__class__.__mro__ }}",
    "endless-recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_that_fails_is_one_line(template, tmp_path, capsys):
    saved_model(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATES[template])
    (tmp_path / "context.txt").write_text("A context of some words. " * 20)
    capsys.readouterr()  # how writing the model went
    status = main(
        ["compare", "--context", str(tmp_path / "context.txt"), "--model", str(tmp_path / "model")]
    )
    said = capsys.readouterr()
    assert status == ModelError.exit_code
    assert said.err.startswith("error: The model's chat template ")
    assert said.err.count("\n") == 1
    assert "\x1b" not in said.err
