"""The Dockerfile and compose.yaml name what there is: targets, files, settings, paths."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.doc_blocks import blocks

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("how-to/install", "how-to/deploy", "reference/settings")
SPOKEN = "".join((ROOT / "docs" / f"{page}.md").read_text("utf-8") for page in PAGES)


@pytest.fixture(scope="module")
def steps():
    """(instruction, rest) of each line of the Dockerfile, comments left out and lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if rest]


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]


def test_the_image_is_set_up_by_the_makefile_alone(steps):
    made = [rest for word, rest in steps if word == "RUN" and "make " in rest and "apt" not in rest]
    assert made == ["make model"]
    assert re.search(r"^model:.*\.runtime$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert not any("pip " in rest for _, rest in steps)


def test_it_runs_as_a_user_for_others_and_without_data_of_its_own(steps):
    found = dict(steps)  # the last of each
    settings = dict(pair.split("=") for pair in found["ENV"].split())
    assert settings["CKV_HOST"] == "0.0.0.0"  # so without CKV_AUTH it refuses to start
    assert "CKV_AUTH" not in settings
    assert settings["CKV_HOME"] == found["VOLUME"]
    assert settings["CKV_PORT"] == found["EXPOSE"]
    assert found["USER"] == "ckv"
    order = [word for word, _ in steps]
    assert order.index("USER") < order.index("COPY")
    assert f":{found['EXPOSE']}/healthz" in found["HEALTHCHECK"]
    assert found["CMD"] == '[".venv/bin/python", "app.py"]'
    for name in settings:
        assert f"`{name}`" in SPOKEN or name == "HF_HOME"


def test_what_is_copied_has_all_that_the_set_up_reads_and_no_secret():
    left_out = (ROOT / ".dockerignore").read_text("utf-8").split("\n")[1:]
    read = {"Makefile", "app.py", "README.md", "pyproject.toml", "requirements.txt", "locks"}
    read |= {"scripts", "ckv_core", "storage", "ui", "cli", "assets", "docs"}
    assert all((ROOT / name).exists() for name in read)
    assert not read & {*left_out}
    assert ".*" in left_out  # .env, .git and every .venv


def test_compose_asks_for_users_and_a_password_and_opens_loopback_alone(services):
    app, cuda, database = (services[name] for name in ("app", "cuda", "database"))
    for each in (app, cuda):
        assert each["environment"]["CKV_AUTH"].startswith("${CKV_AUTH:?")
        assert "${CKV_DATABASE_PASSWORD:?" in each["environment"]["CKV_DATABASE_URL"]
        assert each["ports"] == ["127.0.0.1:7860:7860"]
        assert each["depends_on"]["database"]["condition"] == "service_healthy"
        assert "data:/var/lib/ckv" in each["volumes"]
        assert {name for name in each["environment"] if f"`{name}`" not in SPOKEN} == set()
    assert app["build"]["args"].keys() == {"PIP_EXTRA_INDEX_URL"}
    assert cuda["build"] == "."
    assert "ports" not in database
    page = [text for _, text in blocks(ROOT / "docs" / "how-to" / "install.md")]
    (given,) = (text for text in page if text.startswith("CKV_AUTH="))
    (up,) = (text for text in page if text.startswith("docker compose up "))
    written = (ROOT / "compose.yaml").read_text("utf-8")
    names = {line.partition("=")[0] for line in given.splitlines() if line[0] != "#"}
    assert set(re.findall(r"\$\{(\w+):\?", written)) <= names
    assert names <= set(re.findall(r"\$\{(\w+):", written))
    started = [shlex.split(line, comments=True)[-1] for line in up.splitlines()]
    assert {*started} == services.keys() - {"database"}
    (tested,) = re.findall(r"tested with (\d+)", SPOKEN)
    assert database["image"].startswith(f"postgres:{tested}-")
