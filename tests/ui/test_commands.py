"""`python app.py export` to a report and to LLM Comparator files, without a server."""

import json
from contextlib import closing

import pytest

from ckv_core.results.events import Generated, RunFinished, RunPrepared
from storage import library
from storage.database import default_url, open_database
from storage.recorder import Recorder
from tests.factories.app import request
from tests.factories.runs import done_result
from tests.ui.report_reading import opened
from ui.commands import main
from ui.report import charts as report_charts


def events():
    result = done_result()
    yield RunPrepared(result.model, result.prompt, tuple(result.variants), result.environment)
    fields = ("text", "token_ids", "token_texts", "stopped")
    yield Generated(*(tuple(getattr(v, name) for v in result.variants) for name in fields))
    yield RunFinished(result.timings_ms)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def slug(home):
    with closing(open_database(default_url(home))) as database:
        recorder = Recorder(database)
        slug = recorder.create(request())
        recorder.start(slug)
        for event in events():
            recorder.apply(slug, event)
        recorder.finish(slug)
        recorder.create(request(question="never run"))
        with database.write() as session:
            library.annotate(session, slug, "A title", "my note", ["good"])
    return slug


@pytest.fixture(autouse=True)
def at_home(home, monkeypatch):
    monkeypatch.setenv("CKV_HOME", str(home))
    monkeypatch.delenv("CKV_DATABASE_URL", raising=False)
    monkeypatch.setattr(report_charts, "FIGURES_PER_CHART", 2)


def test_the_variants_are_written_as_code_for_kvpress(slug, tmp_path, capsys):
    path = tmp_path / "presses.py"
    assert main(["export", slug, "--kvpress", str(path)]) == 0
    assert "from kvpress import" in path.read_text(encoding="utf-8")
    compile(path.read_bytes(), str(path), "exec")
    assert f"variants of {slug} for kvpress." in capsys.readouterr().out


def test_a_report_and_a_bundle_are_written_at_once(slug, tmp_path, capsys):
    report, bundle = tmp_path / "r.html", tmp_path / "b.zip"
    assert main(["export", slug, "--html", str(report), "--out", str(bundle)]) == 0
    read = opened(report.read_bytes())
    assert read.page["title"] == "A title"
    assert {"label": "Note", "text": "my note"} in read.value("run")["rows"]
    assert bundle.stat().st_size > 0
    assert f"{report.stat().st_size:,} bytes" in capsys.readouterr().out


def test_parts_are_left_out(slug, tmp_path):
    report = tmp_path / "r.html"
    assert main(["export", slug, "--html", str(report), "--without", "kept,charts"]) == 0
    assert set(opened(report.read_bytes()).files) == {"page"}


def test_one_comparison_file_for_each_pair_or_the_one_that_is_asked_for(slug, tmp_path, capsys):
    file = tmp_path / "c.json"
    assert main(["export", slug, "--comparator", str(file)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c-0-1.json", "c-0-2.json"]
    assert main(["export", slug, "--comparator", str(file), "--pair", "2", "1"]) == 0
    models = json.loads(file.read_text())["models"]
    assert [model["name"] for model in models] == ["SnapKV + CriticalKV", "SnapKV"]
    assert "SnapKV + CriticalKV and SnapKV, 1 examples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--all", "--html", "x.html"], "take one run"),
        (["abc123def456", "--html", "x.html"], "There is no run"),
        (["SLUG", "--html", "/nowhere/x.html"], "cannot be written"),
        (["--all", "--kvpress", "x.py"], "take one run"),
        (["SLUG", "--html", "x.html", "--without", "all"], "kept, charts, strips"),
        (["SLUG", "--comparator", "x.json", "--pair", "0", "7"], "Name two of the variants"),
        (["SLUG"], "--out FILE"),
    ],
)
def test_what_cannot_be_done_is_one_line(slug, arguments, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *(slug if each == "SLUG" else each for each in arguments)]) in (1, 2)
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_over_is_not_exported(home, capsys):
    with closing(open_database(default_url(home))) as database, database.read() as session:
        runs, _ = library.list_runs(session)
    (queued,) = [run.slug for run in runs if run.state == "queued"]
    assert main(["export", queued, "--html", "x.html"]) == 1
    assert "not over yet" in capsys.readouterr().err
