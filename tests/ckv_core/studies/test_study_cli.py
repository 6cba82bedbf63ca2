"""The command `study`, killed and gone on with: no sample is lost and none counted twice."""

import json
import os
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import func, select

from ckv_core import cli
from storage.database import Database, open_database
from storage.study_models import StudyResult

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = 12
POINTS = 5
PATIENCE_S = 120


@pytest.fixture
def folder(tmp_path, model_folder) -> Path:
    rng = random.Random(1)
    rows = [
        {
            "id": f"q{at}",
            "context": " ".join(rng.choices(["ferry", "harbour", "nine", "gate"], k=60)),
            "question": "When?",
            "answers": ["nine"],
        }
        for at in range(SAMPLES)
    ]
    (tmp_path / "samples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "study.yaml").write_text(
        f"name: tiny study\nmodel: {model_folder}\ndata: {{file: samples.jsonl}}\n"
        "scenario: context-only\nvariants: [full, snapkv, snapkv+critical]\n"
        "budgets: [20%, 40%]\nmax_new_tokens: 4\n"
    )
    return tmp_path


@pytest.fixture
def url(new_url, monkeypatch, tmp_path) -> str:
    url = new_url()
    monkeypatch.setenv("CKV_DATABASE_URL", url)
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))
    open_database(url).close()
    return url


def stored(database: Database) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(StudyResult)) or 0


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "ckv_core", "study", "run", "study.yaml", *more]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, *more: str) -> int:
    return cli.main(["study", "run", str(folder / "study.yaml"), *more])


def exported(folder: Path) -> dict[str, object]:
    path = folder / "out.json"
    assert cli.main(["study", "export", "tiny study", "--json", str(path)]) == 0
    found: dict[str, object] = json.loads(path.read_text())
    return found


# Of each database one law: tests/storage/test_studies.py has both under many writers.
@pytest.mark.parametrize("new_url", ["postgresql"], indirect=True)
def test_killed_in_the_middle_it_goes_on_where_it_was(folder, url, capsys):
    process = start(folder)
    until = time.monotonic() + PATIENCE_S
    with closing(open_database(url)) as database:
        while not (found := stored(database)) and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        process.kill()
        process.communicate()
        before = stored(database)
        assert found
        assert before % POINTS == 0
        assert run(folder) == 0
        assert f"{SAMPLES - before // POINTS:,} samples" in capsys.readouterr().out or before == 60
        assert stored(database) == SAMPLES * POINTS
    assert run(folder) == 0
    assert "Nothing is left to run." in capsys.readouterr().out
    check(exported(folder))
    files = {name: str(folder / name) for name in ("report.html", "log.json", "papers.bib")}
    given = zip(("--html", "--inspect", "--bibtex"), files.values(), strict=True)
    asked = [word for pair in given for word in pair]
    assert cli.main(["study", "export", "tiny study", *asked]) == 0
    texts = [Path(file).read_text(encoding="utf-8") for file in files.values()]
    for text, part in zip(texts, ("<!doctype html>", '"version": 2', "@misc{li2024"), strict=True):
        assert part in text
    assert cli.main(["study", "export", "tiny study"]) == 2


def check(document):
    assert set(document) == {"schema", "study", "samples", "table", "decision"}
    assert len({(r["id"], r["variant"], r["budget"]) for r in document["samples"]}) == 60
    assert len(document["samples"]) == 60
    for row in document["samples"]:
        assert set(row) == {"id", "variant", "budget", "score", "text", "state", "reason"}
        assert row["state"] == "done"
        assert 0 <= row["score"] <= 1
    assert [(r["variant"], r["budget"]) for r in document["table"]] == [
        ("full", None),
        ("snapkv", "20%"),
        ("snapkv", "40%"),
        ("snapkv+critical", "20%"),
        ("snapkv+critical", "40%"),
    ]
    for row in document["table"]:
        own = [
            r["score"]
            for r in document["samples"]
            if (r["variant"], r["budget"]) == (row["variant"], row["budget"])
        ]
        assert row["n"] == SAMPLES
        assert row["score"] == pytest.approx(sum(own) / SAMPLES)
        assert row["low"] <= row["score"] <= row["high"]
    assert document["decision"]["sentence"]


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_two_parts_at_once_make_the_whole(folder, url):
    other = start(folder, "--shard", "2/2", "--db", url)
    assert other.stdout is not None
    assert other.stdout.readline()  # it is at work
    assert run(folder, "--shard", "1/2") == 0
    other.communicate(timeout=PATIENCE_S)
    assert other.returncode == 0
    check(exported(folder))


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_it_is_listed_and_shown(folder, url, capsys):
    assert cli.main(["study", "list"]) == 0
    assert "no study yet" in capsys.readouterr().out
    assert run(folder, "--shard", "1/3") == 0
    capsys.readouterr()
    assert cli.main(["study", "list"]) == 0
    assert "tiny study  unfinished  20 of 60" in capsys.readouterr().out
    assert cli.main(["study", "show", "tiny study"]) == 0
    out = capsys.readouterr().out
    assert "40 results are not there yet" in out
    assert cli.main(["study", "export", "tiny study", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["study"]["done"] == 20


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "other"], "There is no study 'other'"),
        (["export", "other", "--json", "-"], "There is no study 'other'"),
        (["run", "missing.yaml"], "cannot be read"),
        (["run", "{file}", "--shard", "3/2"], "must read I/N"),
        (["list", "--db", "nothing"], "is no database URL"),
    ],
)
def test_a_mistake_is_one_line(folder, url, capsys, arguments, sentence):
    given = [each.format(file=folder / "study.yaml") for each in arguments]
    assert cli.main(["study", *given]) in (1, 2)
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1


def test_without_the_database_packages_it_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "storage.studies", None)
    assert cli.main(["study", "list"]) == 1
    assert "install requirements.txt" in capsys.readouterr().err
