"""Every `bash` and `python` block of the README and the documents runs as written.

A page's blocks run in one bare shell, in a folder that has what the repository has; pages share a
data folder, as a reader's do. docs/how-to/programs.md needs an app: its blocks run in
tests/e2e/test_default_model.py. Every other block is in HELD, with what holds it instead.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pandas
import pytest
import yaml

from benchmarks.findings import lines_of
from benchmarks.paper import AUTHORS
from ckv_core.experiment.export import read_export
from ckv_core.models.default_model import prepare_default_model
from ckv_core.models.steps import silent
from cli.main import main
from tests.doc_blocks import blocks, can_be_apart, commands, run_as_shown

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# The README first: later pages go on with what it computed.
ALL = [ROOT / "README.md", *sorted({*ROOT.glob("[!R]*.md"), *DOCS.rglob("*.md")})]
OTHERS = {DOCS / "how-to" / "programs.md"}
SCALE = DOCS / "how-to" / "scale.md"
RUN, SHOWN = {"bash", "python"}, {"text", "math"}
# What is not run as written: page, how the block begins, why, and what holds it instead.
# "By hand" is of 2026-11-26.
HELD = (
    ("README", "make run ", "does not end; .ci/run is `make check test`, tests/e2e starts app.py"),
    ("tutorials/first_ten_minutes", "make run\n", "as in the README"),
    ("how-to/install", "make run\n", "as in the README"),
    ("how-to/install", "pip install .\n", "needs the registry; by hand"),
    ("how-to/install", "CKV_AUTH=", "needs Docker; test_container.py fills compose.yaml with it"),
    ("how-to/install", "docker compose ", "needs Docker; test_container.py has the services"),
    ("how-to/deploy", "# In the http block", "needs nginx; by hand with nginx 1.22.1"),
    ("how-to/deploy", "[Unit]", "no command; systemd-analyze reads it below"),
    ("how-to/deploy", "createuser ", "storage/test_postgresql.py runs it on the tests' server"),
    ("how-to/scale", "CKV_CLUSTER=local ", "does not end; by hand, and worker/test_cluster.py"),
    ("how-to/repeat_the_paper", "make paper ", "a model of 8B; below with a tiny one"),
    ("how-to/compare_with_kvpress", "source ", "minutes of set-up; by hand, and test_presses.py"),
    ("how-to/compare_with_kvpress", '{\n  "schema": 1,\n  "v', "engine/test_external_selection.py"),
    ("how-to/compare_with_kvpress", '{\n  "schema": 1,\n  "m', "engine/test_external_selection.py"),
    ("how-to/your_data", "name: needles", "experiment/test_study_file.py reads it"),
    ("how-to/your_data", '{"id": ', "experiment/test_study_file.py reads it"),
    ("how-to/your_data", ".venv/bin/pip ", "needs the registry; test_locks.py has the file"),
    ("how-to/add_a_method", '"""One line', "test_docs.py registers it"),
    ("how-to/add_a_method", "class KeyDifference", "test_docs.py compares it with the code"),
    ("how-to/add_a_method", "[project]", "test_docs.py builds it"),
    (
        "how-to/add_a_method",
        "pip install -e .",
        "needs the registry; by hand, and test_entry_points.py",
    ),
    ("how-to/share", "<iframe ", "ui/report/test_embed.py opens such an address"),
    ("tutorials/choose_a_method", "name: needles", "below: it is the example"),
    ("findings/README", "source ", "takes an hour; below with a tiny model"),
)
PAGES = [
    page for page in ALL if page not in OTHERS and RUN & {language for language, _ in blocks(page)}
]


def test_every_block_is_run_or_held_otherwise():
    left = []
    for page in ALL:
        text, found = page.read_text("utf-8"), blocks(page)
        assert "~~~" not in text
        assert text.count("```") == 2 * len(found), page
        name = str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/")
        left += [(name, shown) for language, shown in found if language not in RUN | SHOWN]
    for name, shown in left:
        reasons = [why for page, begin, why in HELD if page == name and shown.startswith(begin)]
        assert len(reasons) == 1, f"{name}: mark it `bash`, or add it to HELD:\n{shown}"
    assert len(left) == len(HELD), "HELD names a block that is on no page"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder like the repository's, where nothing that is written touches that."""
    folder = tmp_path_factory.mktemp("place")
    for each in ROOT.iterdir():
        (folder / each.name).symlink_to(each)
    (folder / "home").mkdir()
    (folder / "home" / "models").symlink_to(prepare_default_model(silent).parent)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_its_commands_print(page, place):
    env, apart = {"CKV_HOME": str(place / "home")}, page == SCALE  # `ray stop` ends all of Ray
    if apart and not can_be_apart():
        pytest.skip("Ray is started apart from other processes, which this machine does not allow")
    with tempfile.TemporaryDirectory() as folder:  # its path is short enough for Ray's sockets
        env |= {"HOME": folder, "RAY_TMPDIR": folder} if apart else {}
        run_as_shown(blocks(page), place, env, apart)


def held(page: Path, begin: str) -> str:
    (text,) = [text for _, text in blocks(page) if text.startswith(begin)]
    return text


@pytest.mark.slow
def test_the_authors_figures_are_repeated_on_a_tiny_model(place, model_folder):
    """One of ten samples of a file as kvpress publishes it."""
    (make,) = commands(held(DOCS / "how-to" / "repeat_the_paper.md", "make paper "))
    context = "The ferry left at nine. Nobody waved. " * 9
    row = {"context": context, "question": "When?", "answer_prefix": "At", "answer": ["nine"]}
    row |= {"task": "qa_1", "max_new_tokens": 8}
    file = place / make[-1].removeprefix("DATA=")
    pandas.DataFrame([row] * 10).to_parquet(file)
    make[2] = f"MODEL={model_folder}"
    ran = subprocess.run(
        ["make", "--old-file=.venv/.runtime", "--old-file=model", *make[1:]],
        cwd=place,
        env=os.environ | {"CKV_HOME": str(place / "home")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    rows = re.findall(r"^\| (\w\S+) \| \S+ \| .* \|$", ran.stdout, re.MULTILINE)
    assert rows == ["method", *AUTHORS]


@pytest.mark.slow
def test_the_findings_are_repeated_on_a_tiny_model(model_folder, tmp_path, monkeypatch):
    """One sample of each task; the last command would write the repository's tables."""
    text = held(DOCS / "findings" / "README.md", "source ")
    (_, (_, folder), run, export, findings) = commands(text)
    study = (ROOT / folder / run[-1]).read_text("utf-8")
    for shown, here in (
        ("SmolLM2-135M-Instruct", model_folder),
        ("samples: 100", "samples: 1"),
        ("max_new_tokens: 24", "max_new_tokens: 2"),
    ):
        assert shown in study
        study = study.replace(shown, here)
    (tmp_path / run[-1]).write_text(study, encoding="utf-8")
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert main(run[1:]) == 0
    assert main(export[1:]) == 0
    lines = [*lines_of(read_export(Path(export[-1]).read_text("utf-8")))]
    assert {line["variant"] for line in lines} == {"full", *yaml.safe_load(study)["variants"]}
    assert (ROOT / folder / findings[1]).resolve() == ROOT / "benchmarks" / "findings.py"
    studies = {path.stem for path in (ROOT / folder).glob("*.yaml")}
    assert {Path(name).stem for name in findings[2:]} == studies


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_reads_the_unit(tmp_path):
    unit = held(DOCS / "how-to" / "deploy.md", "[Unit]")
    file = tmp_path / "ckv.service"
    file.write_text(unit.replace("/opt/criticalkv-lab", str(ROOT)), encoding="utf-8")
    ran = subprocess.run(
        ["systemd-analyze", "verify", file], check=False, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_study_shown_is_the_example():
    shown = held(DOCS / "tutorials" / "choose_a_method.md", "name: needles")
    assert (ROOT / "examples" / "needles.yaml").read_text("utf-8").endswith(shown)
