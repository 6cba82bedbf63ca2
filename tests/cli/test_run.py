"""The command `run`, killed and run again: no sample is lost and none is counted twice."""

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from ckv_core.engine import together
from cli import main as cli
from storage.database import Database, open_database
from storage.models import ResultRow

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = 12
POINTS = 5
WORDS_EACH = 235  # of a sample, of six tokens, so that any three of them fill a batch
WORDS = ["ferry", "harbour", "nine", "gate"]
# Dies by SIGKILL where the results of its second sample are to be stored, and says what it began.
KILLED = """
import os, signal, sys
from cli import main as cli
from ckv_core.engine import together
from storage.recorder import Recorder

begun, commit, compare, stored = [], Recorder.commit, together.compare, []

def begin(request, *others, **more):
    begun.append(request)
    return compare(request, *others, **more)

def store(self, slug, results):
    if stored:
        print(len(begun), file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    stored.append(results)
    commit(self, slug, results)

together.compare, Recorder.commit = begin, store
cli.main(["run", "study.yaml"])
"""


@pytest.fixture
def folder(tmp_path, model_folder) -> Path:
    rng = random.Random(1)
    rows = [
        {
            "id": f"q{at}",
            "context": " ".join(rng.choices(WORDS, k=WORDS_EACH)),
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
        return session.scalar(select(func.count()).select_from(ResultRow)) or 0


def run(folder: Path, *more: str) -> int:
    return cli.main(["run", str(folder / "study.yaml"), *more])


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_the_commands_json_is_the_export(folder, url, capsys):
    assert run(folder, "--json", "-") == 0
    told = capsys.readouterr()
    assert "12 samples, 60 results to come" in told.err
    assert json.loads(told.out) == exported(folder)
    assert cli.main(["why", "tiny study", "elsewhere"]) == 2
    assert "lost no such sample that the full cache answers; variants" in capsys.readouterr().err
    assert cli.main(["delete", "tiny study"]) == 0
    assert cli.main(["show", "tiny study"]) == 1


def exported(folder: Path) -> dict[str, Any]:
    path = folder / "out.json"
    assert cli.main(["export", "tiny study", "--json", str(path)]) == 0
    return json.loads(path.read_text())


# Of each database one law: tests/storage/test_studies.py has both under many writers.
@pytest.mark.parametrize("new_url", ["postgresql"], indirect=True)
def test_killed_in_the_middle_it_goes_on_where_it_was(folder, url, capsys):
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert done.stderr.split()[-1] == "4", "a batch's samples are stored before the next begins"
    with closing(open_database(url)) as database:
        assert stored(database) == POINTS
        assert run(folder) == 0
        assert f"{SAMPLES - 1} samples" in capsys.readouterr().err
        assert stored(database) == SAMPLES * POINTS
    assert run(folder) == 0
    assert "Nothing is left to run." in capsys.readouterr().err
    check(exported(folder))
    kinds = {"html": "<!doctype html>", "inspect": '"version": 2'}
    asked = [word for kind in kinds for word in (f"--{kind}", str(folder / kind))]
    assert cli.main(["export", "tiny study", *asked]) == 0
    for kind, part in kinds.items():
        assert part in (folder / kind).read_text(encoding="utf-8")
    assert cli.main(["export", "tiny study"]) == 2


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_ctrl_c_ends_what_is_begun_and_a_second_one_loses_it(folder, url, capsys, monkeypatch):
    compare, begun, before = together.compare, [], signal.getsignal(signal.SIGINT)

    def begin(*arguments, **more):
        begun.append(arguments)
        for _ in range({2: 1, 4: 2}.get(len(begun), 0)):  # once, and in the next run twice
            signal.raise_signal(signal.SIGINT)
        return compare(*arguments, **more)

    monkeypatch.setattr(together, "compare", begin)
    with closing(open_database(url)) as database:
        for kept in (2, 3):
            assert run(folder) == 1
            stopped = f"Stopped by Ctrl-C: {kept} of 12 samples are stored. The same command runs"
            assert stopped in capsys.readouterr().err
            assert stored(database) == kept * POINTS
    assert signal.getsignal(signal.SIGINT) is before


TEXTS = ("text", "state", "reason")


def check(document):
    assert set(document) == {"schema", "study", "samples", "table", "decision"}
    assert len({(r["id"], r["variant"], r["budget"]) for r in document["samples"]}) == 60
    assert len(document["samples"]) == 60
    for row in document["samples"]:
        assert set(row) == {"id", "variant", "budget", "score", "outcome", *TEXTS}
        assert (row["state"], row["outcome"], row["score"]) == ("done", "cut", None)
    evicting = itertools.product(("snapkv", "snapkv+critical"), ("20%", "40%"))
    points = [(row["variant"], row["budget"]) for row in document["table"]]
    assert points == [("full", None), *evicting]
    for row in document["table"]:
        assert (row["n"], row["score"], row["cut"]) == (0, None, SAMPLES)
    assert document["decision"]["sentence"]


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_parts_make_the_whole_and_until_then_it_is_listed_as_unfinished(folder, url, capsys):
    def out(*arguments: str) -> str:
        capsys.readouterr()
        assert cli.main([*arguments]) == 0
        return capsys.readouterr().out

    assert "no run yet" in out("list")
    assert run(folder, "--shard", "1/3") == 0
    assert re.search(r"^tiny study +unfinished +20 of 60 results", out("list"), re.M)
    assert "40 results are not there yet" in out("show", "tiny study")
    assert json.loads(out("export", "tiny study", "--json", "-"))["study"]["done"] == 20
    assert run(folder, "--shard", "3/3") == 0
    assert run(folder, "--shard", "2/3", "--db", url) == 0
    assert re.search(r"^tiny study +done +60 of 60 results", out("list"), re.M)
    check(exported(folder))


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_a_study_of_which_a_result_failed_exits_1_and_calls_it_no_passing_failure(
    folder, url, capsys
):
    file = folder / "study.yaml"
    file.write_text(file.read_text().replace("20%", "1%"))
    assert run(folder, "--shard", "12/12") == 1
    told = capsys.readouterr().out
    assert "note: 2 results failed and fail each time: " in told
    assert "may pass" not in told
    assert cli.main(["show", "tiny study", "--all"]) == 0
    told = capsys.readouterr().out
    assert told.count("1 failed each time: ") == 2  # of each variant its own reason
    assert run(folder, "--shard", "12/12") == 1
    assert "Nothing is left to run." in capsys.readouterr().err


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "other"], "There is no run 'other'"),
        (["export", "other", "--json", "-"], "There is no run 'other'"),
        (["run", "missing.yaml"], "cannot be read"),
        (["run", "{file}", "--shard", "3/2"], "must read I/N"),
        (["list", "--db", "nothing"], "is no database URL"),
    ],
)
def test_a_mistake_is_one_line(folder, url, capsys, arguments, sentence):
    given = [each.format(file=folder / "study.yaml") for each in arguments]
    assert cli.main([*given]) in (1, 2)
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
