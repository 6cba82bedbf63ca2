"""`ckv export|tokens|users|audit` on a database of its own, without a server."""

import json
import os
import re
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import update

import app
import ckv_core
from ckv_core.experiment.reading import Reading
from cli.main import main
from cli.why import _of_sample
from storage import library, repository
from storage.database import default_url, open_database
from storage.library import count_of_nobody
from storage.models import Run
from storage.recorder import Recorder
from tests.factories.app import STUDY, request, sample_result, store_run, study_samples
from tests.factories.runs import done_result, full_variant
from tests.ui.report_reading import opened
from ui.report import report
from ui.users import HASHER, read_users


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def slug(home):
    """A finished run of this home, beside one that was never run."""
    with closing(open_database(default_url(home))) as database:
        slug = store_run(
            SimpleNamespace(_runs=SimpleNamespace(recorder=Recorder(database))),
            request(),
            done_result(),
        )
        Recorder(database).create(request(question="never run"))
        with database.write() as session:
            library.annotate(session, slug, "A title", "my note")
    return slug


@pytest.fixture(autouse=True)
def at_home(home, monkeypatch):
    monkeypatch.setenv("CKV_HOME", str(home))
    monkeypatch.setenv("CKV_AUTH", "ann:secret")
    monkeypatch.delenv("CKV_DATABASE_URL", raising=False)
    monkeypatch.setattr(report, "FIGURES_PER_CHART", 2)


@pytest.fixture
def said(capsys):
    """Runs a command; what it says, on standard error if it is to fail."""

    def run(*arguments, status=0):
        assert main([*map(str, arguments)]) == status
        return capsys.readouterr()[bool(status)]

    return run


def test_the_variants_are_written_as_code_for_kvpress(slug, tmp_path, said):
    path = tmp_path / "presses.py"
    assert f"{path}: " in said("export", slug, "--kvpress", path)
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--all", "--html", "x.html"], "takes one run or study"),
        (["abc123def456", "--html", "x.html"], "There is no run"),
        (["SLUG", "--html", "/nowhere/x.html"], "cannot be written"),
        (["--all", "--kvpress", "x.py"], "takes one run or study"),
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


def test_a_study_of_nine_points_fits_on_one_screen(home, said):
    samples, budgets = study_samples(), ("10%", "50%", "90%")
    study = replace(STUDY, name="nine points", budgets=budgets)
    results = [
        sample_result(sample.id, number, point.variant, point.budget)
        for number, sample in enumerate(samples)
        for point in study.points()
    ]
    with closing(open_database(default_url(home))) as database:
        slug = Recorder(database).add(Reading(study, samples, results))
        # A reader knows a method by the name that is shown.
        assert _of_sample(database, slug, "KeyDiff", "", "", ()).variant == "keydiff:budget=50%"
    shown = said("show", "nine points")
    lines = [part for line in shown.splitlines() for part in textwrap.wrap(line, 100) or [""]]
    assert len(lines) <= 25, shown
    assert lines[2].startswith("Cannot tell yet: SnapKV at 90 % may lose up to")
    rows = [re.split(" {2,}", line) for line in lines if "  " in line]
    assert len(rows) == 2 + 9
    assert rows[0] == ["Method", "Budget", "Answered", "Loses at most", "Kept (MiB)", "Decision"]
    assert rows[1] == ["Full cache", "all", "40 of 40", "-", "0.0", "-"]
    assert rows[3][:3] == ["SnapKV", "50 %", "40 of 40"]
    assert any(row[2] == "29 of 40, 1 failed" for row in rows), rows
    assert f"All figures: ckv show 'nine points' --all, or /run?id={slug} in the app." in shown
    assert lines[-1].startswith("Next: add about ")
    every = said("show", "nine points", "--all")
    assert all(part in every for part in ("Rank correlation", "Lost answers", "minus the full"))
    assert lines[-1] in every
    said("delete", "nine points")


def test_a_run_that_is_not_over_is_not_exported(home, slug, said):
    with closing(open_database(default_url(home))) as database, database.read() as session:
        runs, _ = library.list_runs(session)
    (queued,) = [run.slug for run in runs if run.state == "queued"]
    assert "not over yet" in said("export", queued, "--html", "x.html", status=1)


def test_runs_are_listed_shown_written_and_deleted(slug, home, tmp_path, said):
    with closing(open_database(default_url(home))) as database:
        recorder = Recorder(database)
        result = replace(done_result(), variants=[full_variant()])
        other = store_run(
            SimpleNamespace(_runs=SimpleNamespace(recorder=recorder)), request(), result
        )
        with database.write() as session:
            library.annotate(session, other, "[red]Not[/red] markup", "")
    listed = {line.split()[0]: line for line in said("list").splitlines()}
    assert "[red]Not[/red] markup" in listed[other]
    assert "  done  3 variants  " in listed[slug]
    shown = said("show", other)
    assert "[red]Not[/red] markup: done" in shown
    assert "== full" in shown
    path = tmp_path / "result.json"
    assert f"{path}: " in said("export", slug, "--json", path)
    document = json.loads(said("export", slug, "--json", "-"))
    assert document == json.loads(path.read_text(encoding="utf-8"))
    assert document["schema"] == 1
    assert "--inspect is not for this; take --json" in said(
        "export", slug, "--inspect", "-", status=2
    )
    assert "There is no run 'none'" in said("delete", other, "none", status=1)
    with closing(open_database(default_url(home))) as database, database.write() as session:
        session.execute(update(Run).where(Run.slug == other).values(request=["spoilt"]))
    assert "is spoilt" in said("show", other, status=1)
    assert f"Deleted {other}." in said("delete", other)
    assert other not in said("list")


def test_a_user_takes_over_what_nobody_owns(slug, said):
    assert "no user 'eve'" in said("users", "takeover", "eve", status=2)
    with closing(open_database(default_url(Path(os.environ["CKV_HOME"])))) as database:
        counted = database.read_with(count_of_nobody)
        assert f"{counted} runs are ann's" in said("users", "takeover", "ann")
        assert database.read_with(repository.run_owner, slug) == "ann"
        with database.write() as session:
            session.execute(update(Run).values(owner=None))
    assert "took over" in said("audit")


# --- tokens, users, audit --------------------------------------------------------------------


def test_a_token_is_made_listed_and_revoked_once(said):
    token = said("tokens", "create", "ann", "--name", "ni\x1bght", "--days", "7").strip()
    assert re.fullmatch(r"ckv_[\w-]{43}", token)
    listed = said("tokens", "list", "ann")
    assert "ann  read  expires 2" in listed
    assert token not in listed
    assert "\x1b" not in listed
    number = listed.split()[0]
    assert "opens nothing any more" in said("tokens", "revoke", number)
    assert "no open token" in said("tokens", "revoke", number, status=1)
    assert said("tokens", "list").strip() == "There is no token."
    acts = said("audit")
    assert acts.index("revoked token") < acts.index("made token")


def test_a_user_is_disabled_and_enabled_and_nobody_else_is_known(said):
    assert "ann is disabled" in said("users", "disable", "ann")
    assert "ann may log in" in said("users", "enable", "ann")
    assert "no user 'bob'" in said("users", "disable", "bob", status=2)
    assert "no user 'bob'" in said("tokens", "create", "bob", status=2)


def test_a_shell_without_the_services_settings_disables_nobody(said, monkeypatch):
    """It would say so of a database of its own, which no app reads."""
    said("users", "disable", "ann")
    monkeypatch.delenv("CKV_AUTH")
    assert "may log in to" in said("users", "enable", "ann")
    assert "ckv.sqlite3 knows no user 'bob'; set CKV_AUTH" in said(
        "users", "disable", "bob", status=2
    )


def test_what_the_app_writes_is_its_users_alone(tmp_path):
    """The database with its log, a backup, an export, and the folders."""
    home = tmp_path / "new" / "home"
    code = (
        "import os; os.umask(0o022); from cli.main import main;"
        "from storage.database import default_url, open_database; from pathlib import Path;"
        "assert main(['audit']) == 0;"
        "opened = open_database(default_url(Path(os.environ['CKV_HOME'])));"
        "opened.write().__enter__();"
        "assert main(['backup', os.environ['CKV_HOME'] + '/backup.sqlite3']) == 0;"
        "os.umask(0);"  # a backup is private by itself too
        "from storage.sqlite import copy_database; home = Path(os.environ['CKV_HOME']);"
        "copy_database(home / 'ckv.sqlite3', home / 'copy.sqlite3')"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"CKV_HOME": str(home)}
    )
    modes = {path.name: path.stat().st_mode & 0o777 for path in [home, *home.rglob("*")]}
    assert {"home", "backup.sqlite3"} <= modes.keys()
    assert any(name.endswith("-wal") for name in modes)
    for path in [home, *home.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_app_takes_no_command_and_ckv_tells_its_version(said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["app.py", "backup", "file"])
    assert app.main() == 2
    assert "ckv --help" in capsys.readouterr().err
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ckv {ckv_core.__version__}\n"


def test_a_users_line_is_printed_and_opens(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("getpass.getpass", lambda _: "secret")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["users", "line", "eve", "--admin"]) == 0
    file = tmp_path / "users"
    file.write_text(capsys.readouterr().out)
    eve = read_users(f"@{file}")["eve"]
    assert (HASHER.verify(eve.hashed, "secret"), eve.is_admin) == (True, True)
    for wrong in ("a:b", " ", "#a"):
        assert main(["users", "line", wrong]) == 2
    typed = iter(["secret", "secrot"])
    monkeypatch.setattr("getpass.getpass", lambda _: next(typed))
    assert main(["users", "line", "eve"]) == 2
    assert "differ" in capsys.readouterr().err
