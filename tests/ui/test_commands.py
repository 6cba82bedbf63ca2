"""`python app.py export|token|user|audit` on a database of its own, without a server."""

import json
import re
from contextlib import closing
from types import SimpleNamespace

import pytest

from storage import library
from storage.database import default_url, open_database
from storage.recorder import Recorder
from tests.factories.app import request, store_run
from tests.factories.runs import done_result
from tests.ui.report_reading import opened
from ui.commands import main
from ui.report import charts as report_charts


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def slug(home):
    """A finished run of this home, beside one that was never run."""
    with closing(open_database(default_url(home))) as database:
        slug = store_run(SimpleNamespace(_recorder=Recorder(database)), request(), done_result())
        Recorder(database).create(request(question="never run"))
        with database.write() as session:
            library.annotate(session, slug, "A title", "my note", ["good"])
    return slug


@pytest.fixture(autouse=True)
def at_home(home, monkeypatch):
    monkeypatch.setenv("CKV_HOME", str(home))
    monkeypatch.setenv("CKV_AUTH", "ann:secret")
    for name in ("CKV_DATABASE_URL", "CKV_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(report_charts, "FIGURES_PER_CHART", 2)


@pytest.fixture
def said(capsys):
    """Runs a command; what it says, on standard error if it is to fail."""

    def run(*arguments, status=0):
        assert main([*map(str, arguments)]) == status
        return capsys.readouterr()[bool(status)]

    return run


def test_the_variants_are_written_as_code_for_kvpress(slug, tmp_path, said):
    path = tmp_path / "presses.py"
    assert f"variants of {slug} for kvpress." in said("export", slug, "--kvpress", path)
    assert "from kvpress import" in path.read_text(encoding="utf-8")
    compile(path.read_bytes(), str(path), "exec")


def test_a_report_and_a_bundle_are_written_at_once(slug, tmp_path, said):
    report, bundle = tmp_path / "r.html", tmp_path / "b.zip"
    told = said("export", slug, "--html", report, "--out", bundle)
    read = opened(report.read_bytes())
    assert read.page["title"] == "A title"
    assert {"label": "Note", "text": "my note"} in read.value("run")["rows"]
    assert bundle.stat().st_size > 0
    assert f"{report.stat().st_size:,} bytes" in told


def test_parts_are_left_out(slug, tmp_path, said):
    report = tmp_path / "r.html"
    said("export", slug, "--html", report, "--without", "kept,charts")
    assert set(opened(report.read_bytes()).files) == {"page"}


def test_one_comparison_file_for_each_pair_or_the_one_that_is_asked_for(slug, tmp_path, said):
    file = tmp_path / "c.json"
    said("export", slug, "--comparator", file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c-0-1.json", "c-0-2.json"]
    told = said("export", slug, "--comparator", file, "--pair", 2, 1)
    models = json.loads(file.read_text())["models"]
    assert [model["name"] for model in models] == ["SnapKV + CriticalKV", "SnapKV"]
    assert "SnapKV + CriticalKV and SnapKV, 1 examples" in told


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


def test_a_run_that_is_not_over_is_not_exported(home, slug, said):
    with closing(open_database(default_url(home))) as database, database.read() as session:
        runs, _ = library.list_runs(session)
    (queued,) = [run.slug for run in runs if run.state == "queued"]
    assert "not over yet" in said("export", queued, "--html", "x.html", status=1)


# --- token, user, audit ----------------------------------------------------------------------


def test_a_token_is_made_listed_and_revoked_once(said):
    token = said("token", "create", "ann", "--name", "ni\x1bght", "--days", "7").strip()
    assert re.fullmatch(r"ckv_[\w-]{43}", token)
    listed = said("token", "list", "ann")
    assert "ann  read  expires 2" in listed
    assert token not in listed
    assert "\x1b" not in listed
    number = listed.split()[0]
    assert "opens nothing any more" in said("token", "revoke", number)
    assert "no open token" in said("token", "revoke", number, status=1)
    assert said("token", "list").strip() == "There is no token."
    acts = said("audit")
    assert acts.index("revoked token") < acts.index("made token")


def test_a_user_is_disabled_and_enabled_and_nobody_else_is_known(said):
    assert "ann is disabled" in said("user", "disable", "ann")
    assert "ann may log in" in said("user", "enable", "ann")
    assert "no user 'bob'" in said("user", "disable", "bob", status=2)
    assert "no user 'bob'" in said("token", "create", "bob", status=2)
    assert "enabled user" not in said("audit", "--action", "disabled user")
