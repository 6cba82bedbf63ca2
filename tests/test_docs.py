"""A claim in a document is tested: rows, paths, commands, pins and the Space's front matter."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer.main import get_command

from ckv_core import cli as core
from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, PARAMETERS, SELECTORS, STORES
from ckv_core.records.variants import VariantSpec
from cli.main import commands
from scripts.check_words import LONGEST, long_sentences, page_texts
from scripts.reference_docs import PAGES, REFERENCE
from tests.doc_blocks import blocks

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(
    str(page.relative_to(ROOT)) for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
)
# What Hugging Face accepts: https://huggingface.co/docs/hub/spaces-config-reference
SPACE_COLORS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
TOP_LEVEL = r"(?:app\.py|(?:ckv_core|storage|ui|cli|assets|tests|docs|scripts|benchmarks|\.ci)/)"
REQUIREMENTS = (
    "requirements.txt",
    "requirements-dev.txt",
    "requirements-mcp.txt",
    "requirements-cluster.txt",
    "requirements-lm-eval.txt",
)
# Stands for a file that the reader is going to write.
MADE_UP = {"ckv_core/methods/NAME.py"}


def front_matter():
    _, head, _ = README.split("---\n", 2)
    pairs = re.findall(r"^(\w+): (.*)$", head, re.MULTILINE)
    return {key: value.strip('"') for key, value in pairs}


def pins(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith(("#", "-r "))]


def table_rows(text):
    """First cell -> all cells of each table row that starts with a code word."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("` "): row for row in rows}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_generated_is_what_the_code_declares(page):
    assert page.read_text("utf-8") == PAGES[page](), "run `python -m scripts.reference_docs`"


def test_the_generated_pages_hold_every_method_and_parameter():
    methods = (REFERENCE / "methods.md").read_text("utf-8")
    parameters = (REFERENCE / "parameters.md").read_text("utf-8")
    for method in METHODS:
        assert f"\n### {method.name}\n" in methods
        assert f"methods.md#{method.name})" in README
    for name in PARAMETERS:
        assert f"\n- `{name}` (" in parameters
    for name in STORES:
        assert f"`store={name}`" in methods


@pytest.mark.parametrize("selector", SELECTORS)
def test_the_methods_page_lists_whose_spec_takes_a_selector(selector):
    taken = []
    for method in METHODS:
        with suppress(ConfigError):
            VariantSpec.parse(f"{method.name}+{selector}")
            taken.append(method.name)
    listed = ", ".join(f"`{name}`" for name in taken)
    assert f"{listed}." in (REFERENCE / "methods.md").read_text("utf-8")


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_every_method_has_a_row_of_what_it_was_compared_with():
    text = (ROOT / "docs" / "reference" / "sources.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)`", " ".join(re.findall(r"^(\| `[^|]+)", text, re.MULTILINE)))
    assert sorted(named) == sorted(method.name for method in METHODS)


def test_every_setting_has_a_row_and_every_row_is_a_setting():
    folders = ("ckv_core", "storage", "ui")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    read = set(re.findall(r"CKV_[A-Z_]*[A-Z]\b", source))
    assert {name for name in table_rows(SETTINGS) if name.startswith("CKV_")} == read


def test_every_stop_of_a_comparison_exists():
    text = (ROOT / "docs" / "explanation" / "way_of_a_comparison.md").read_text(encoding="utf-8")
    stops = re.findall(r"`([\w/]+\.py):([\w.]+)`", text)
    assert len(stops) > 20
    for path, name in stops:
        body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        for part in name.split("."):
            found = [node for node in body if getattr(node, "name", "") == part]
            assert found, f"{path} has no {name}"
            body = found[0].body


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_named_exists(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(rf"(?<![\w./-]){TOP_LEVEL}[\w./-]*", text))
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    folder = (ROOT / document).parent
    missing = [path for path in named - MADE_UP if not (ROOT / path.rstrip(".")).exists()]
    assert not missing + [link for link in links if not (folder / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_command_named_is_a_target(document):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    text = (ROOT / document).read_text(encoding="utf-8")
    code = re.findall(r"`([^`\n]+)`|^ *(make .*)$", text, re.MULTILINE)
    commands = [inline or block for inline, block in code]
    words = [
        word
        for command in commands
        if command.startswith("make ")
        for word in re.split(r"\s{2,}|\s#", command.removeprefix("make "))[0].split()
    ]
    assert {word for word in words if "=" not in word} <= targets


def documented_commands():
    """Words of every command in a document's code, with the program; of `a|b` the first."""
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8").replace("\\\n", " ")
        program = r"(?:\.venv/bin/)?(ckv|python -m ckv_core) +([a-z][^`\n]*)"
        for name, words in re.findall(rf"(?:^ *|`){program}", text, re.MULTILINE):
            known = re.split(r"\s#|\s{2,}#", words)[0].strip(" ,.;:")
            yield document, name, re.sub(r"\|[a-z|]+", "", known)


def test_every_command_in_the_documents_exists_with_its_options():
    programs = {"ckv": get_command(commands()), "python -m ckv_core": get_command(core.app)}
    found = list(documented_commands())
    assert len(found) > 40
    for document, program, line in found:
        command, words = programs[program], shlex.split(line)
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, (document, program, line)
            command = command.commands[words.pop(0)]
        known = {option for each in command.params for option in each.opts} | {"--help"}
        given = {word for word in words if re.fullmatch(r"--[a-z-]+", word)}
        assert given <= known, (document, program, line)


def test_a_long_sentence_is_found_in_prose_alone():
    words = "Word" + " word" * (LONGEST - 1)
    page = (
        f"{words} end. Short.\n\n- {words} `code`.\n\n| {words} end |\n\n```sh\n{words} end\n```\n"
    )
    assert [length for length, _ in long_sentences(page)] == [LONGEST + 1, LONGEST + 1]
    assert not list(long_sentences(f"{words}. {words}."))


@pytest.mark.parametrize(
    ("suffix", "code"),
    [
        (".py", '"""Docs {}"""\nhelp = "{} {}" f"{{word}}"'),
        (".js", 'const help = "{} " +\n  "{}";'),
        (".html", "<p>{} {{{{ word }}}} <b>{}</b></p>"),
    ],
)
def test_a_long_sentence_of_a_page_is_found_in_code(suffix, code):
    words = " ".join(["Word"] * LONGEST)
    shown = " ".join(page_texts(suffix, code.replace("{}", words)))
    ((length, _),) = long_sentences(shown)
    assert length >= 2 * LONGEST


def test_what_a_document_calls_a_label_is_on_the_pages():
    """What is in italics with a capital, as *Run again*; a comma stands between two labels."""
    folders = ("ui", "assets", "ckv_core")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    known = [path for path in files if path.suffix in (".py", ".js", ".html")]
    shown = "\n".join(text for path in known for text in page_texts(path.suffix, path.read_text()))
    for document in sorted(ROOT.glob("docs/[ht]*/*.md")):
        prose = re.sub(r"```.*?```", "", document.read_text("utf-8"), flags=re.DOTALL)
        for words in re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", prose):
            for label in " ".join(words.split()).split(", "):
                assert label in shown, (document.name, label)


def test_the_method_shown_registers_and_the_scorer_shown_is_the_code():
    page = ROOT / "docs" / "how-to" / "add_a_method.md"
    module, scorer = (text for language, text in blocks(page) if language == "py")
    source = (ROOT / "ckv_core" / "methods" / "keydiff.py").read_text("utf-8")
    assert scorer in source
    check = "from ckv_core.methods import METHODS\nprint(METHODS.get('name').label)\n"
    code = module + check
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout == "Name\n"


def test_the_package_shown_has_the_examples_entry_point(tmp_path):
    page, package = ROOT / "docs" / "how-to" / "add_a_method.md", ROOT / "tests" / "example_package"
    (project,) = (text for language, text in blocks(page) if language == "toml")
    (tmp_path / "pyproject.toml").write_text(project, "utf-8")
    shutil.copy(package / "example_parts.py", tmp_path)
    code = "from setuptools.build_meta import *\nprint(prepare_metadata_for_build_editable('.'))"
    command, pipes = [sys.executable, "-c", code], {"capture_output": True, "text": True}
    ran = subprocess.run(command, check=True, cwd=tmp_path, **pipes)
    made, example = tmp_path / ran.stdout.split()[-1], package / "example_parts-1.0.dist-info"
    for name in ("entry_points.txt", "METADATA"):
        theirs, ours = (
            {*(folder / name).read_text("utf-8").splitlines()[-2:]} for folder in (made, example)
        )
        assert theirs == ours


def test_every_requirement_has_a_reason():
    reasons = (ROOT / "docs" / "explanation" / "decisions.md").read_text(encoding="utf-8")
    for line in [line for name in REQUIREMENTS for line in pins(name)]:
        package = re.escape(re.split(r"==|\[", line)[0])
        assert re.search(rf"^\| .*\b{package}\b.* \|", reasons, re.MULTILINE), line


def test_the_space_front_matter_is_valid():
    fields = front_matter()
    assert fields["sdk"] == "gradio"
    assert fields["python_version"] == "3.11"
    assert fields["license"] == "apache-2.0"
    assert fields["pinned"] == "false"
    assert (ROOT / fields["app_file"]).is_file()
    assert {fields["colorFrom"], fields["colorTo"]} <= SPACE_COLORS
    assert 0 < len(fields["short_description"]) <= 60
    assert len(fields["emoji"]) == 1
    assert fields["title"]


def test_the_space_runs_the_gradio_that_is_pinned():
    assert f"gradio=={front_matter()['sdk_version']}" in pins("requirements.txt")
