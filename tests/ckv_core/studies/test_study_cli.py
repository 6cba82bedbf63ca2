"""The command `study`, killed and gone on with: no sample is lost and none counted twice."""

import itertools
import json
import os
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

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


def run(folder: Path, *more: str) -> int:
    return cli.main(["study", "run", str(folder / "study.yaml"), *more])


def exported(folder: Path) -> dict[str, Any]:
    path = folder / "out.json"
    assert cli.main(["study", "export", "tiny study", "--json", str(path)]) == 0
    return json.loads(path.read_text())


# Of each database one law: tests/storage/test_studies.py has both under many writers.
@pytest.mark.parametrize("new_url", ["postgresql"], indirect=True)
def test_killed_in_the_middle_it_goes_on_where_it_was(folder, url, capsys):
    process = subprocess.Popen(
        [sys.executable, "-m", "ckv_core", "study", "run", "study.yaml"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    until = time.monotonic() + PATIENCE_S
    with closing(open_database(url)) as database:
        while not (found := stored(database)) and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        process.kill()
        process.wait()
        before = stored(database)
        assert found
        assert before % POINTS == 0
        assert run(folder) == 0
        assert f"{SAMPLES - before // POINTS:,} samples" in capsys.readouterr().out or before == 60
        assert stored(database) == SAMPLES * POINTS
    assert run(folder) == 0
    assert "Nothing is left to run." in capsys.readouterr().out
    check(exported(folder))
    kinds = {"html": "<!doctype html>", "inspect": '"version": 2', "bibtex": "@misc{li2024"}
    asked = [word for kind in kinds for word in (f"--{kind}", str(folder / kind))]
    assert cli.main(["study", "export", "tiny study", *asked]) == 0
    for kind, part in kinds.items():
        assert part in (folder / kind).read_text(encoding="utf-8")
    assert cli.main(["study", "export", "tiny study"]) == 2


def check(document):
    assert set(document) == {"schema", "study", "samples", "table", "decision"}
    assert len({(r["id"], r["variant"], r["budget"]) for r in document["samples"]}) == 60
    assert len(document["samples"]) == 60
    for row in document["samples"]:
        assert set(row) == {"id", "variant", "budget", "score", "text", "state", "reason"}
        assert row["state"] == "done"
        assert 0 <= row["score"] <= 1
    evicting = itertools.product(("snapkv", "snapkv+critical"), ("20%", "40%"))
    points = [(row["variant"], row["budget"]) for row in document["table"]]
    assert points == [("full", None), *evicting]
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
def test_parts_make_the_whole_and_until_then_it_is_listed_as_unfinished(folder, url, capsys):
    def out(*arguments: str) -> str:
        capsys.readouterr()
        assert cli.main(["study", *arguments]) == 0
        return capsys.readouterr().out

    assert "no study yet" in out("list")
    assert run(folder, "--shard", "1/3") == 0
    assert "tiny study  unfinished  20 of 60" in out("list")
    assert "40 results are not there yet" in out("show", "tiny study")
    assert json.loads(out("export", "tiny study", "--json", "-"))["study"]["done"] == 20
    assert run(folder, "--shard", "3/3") == 0
    assert run(folder, "--shard", "2/3", "--db", url) == 0
    check(exported(folder))


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
