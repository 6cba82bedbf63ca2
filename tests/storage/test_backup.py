"""Backups equal the database; a restore keeps the old one and refuses a running server."""

import os
import re
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from ckv_core.errors import StorageError
from ckv_core.records.run_request import RunRequest
from cli.main import main
from storage import sqlite
from storage.database import default_url, open_database
from storage.recorder import create_run
from storage.servers import only_server
from tests.storage.conftest import record, with_next_schema

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A data folder with a run, to be copied; the run's slug."""
    folder = tmp_path_factory.mktemp("library")
    return folder, make_run(folder)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where the commands' database will be."""
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CKV_DATABASE_URL", raising=False)
    return tmp_path / "home"


@pytest.fixture
def slug(home, library):
    """Of the one run that is at home."""
    folder, slug = library
    shutil.copytree(folder, home)
    return slug


def make_run(home: Path) -> str:
    with closing(open_database(default_url(home))) as database:
        return record(database, RunRequest(context="c", question="q"))


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as found:
        return list(found.iterdump())


def slugs(home: Path) -> set[str]:
    with closing(sqlite3.connect(home / "ckv.sqlite3")) as found:
        return {row[0] for row in found.execute("SELECT slug FROM runs")}


def test_a_backup_taken_while_the_database_is_in_use_restores_to_the_same_content(
    home, slug, tmp_path, capsys
):
    with closing(open_database(default_url(home))) as database, database.write() as session:
        create_run(session, RunRequest(context="c"), "open", datetime.now(UTC))
        assert main(["backup", str(tmp_path / "b.sqlite3")]) == 0
    before = dump(tmp_path / "b.sqlite3")
    assert slugs(home) > {slug}
    assert main(["restore", str(tmp_path / "b.sqlite3")]) == 0
    assert dump(home / "ckv.sqlite3") == before
    assert slugs(home) == {slug}
    kept = next(home.glob("*.before-restore-*"))
    assert str(kept) in capsys.readouterr().out
    assert not list(home.glob(".*.part"))


def test_restore_refuses_while_a_server_runs(home, slug, tmp_path, capsys):
    assert main(["backup", str(tmp_path / "b.sqlite3")]) == 0
    before = dump(home / "ckv.sqlite3")
    with closing(open_database(default_url(home))) as database, only_server(database):
        assert main(["restore", str(tmp_path / "b.sqlite3")]) == 1
    assert "serves" in capsys.readouterr().err
    assert dump(home / "ckv.sqlite3") == before


def test_a_restore_that_fails_at_its_last_step_leaves_the_database_as_it_was(
    home, slug, tmp_path, monkeypatch, capsys
):
    assert main(["backup", str(tmp_path / "b.sqlite3")]) == 0
    before = dump(home / "ckv.sqlite3")
    replace = Path.replace

    def failing(path: Path, target: Path) -> Path:
        if path.suffix == ".part" and Path(target).name == "ckv.sqlite3":
            raise OSError(5, "Input/output error")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", failing)
    assert main(["restore", str(tmp_path / "b.sqlite3")]) == 1
    assert "Input/output error; it is as it was" in capsys.readouterr().err
    assert not list(home.glob("*.before-restore-*"))
    assert dump(home / "ckv.sqlite3") == before


def test_restore_refuses_what_is_no_backup_and_replaces_a_damaged_database(
    home, slug, tmp_path, capsys
):
    (tmp_path / "empty").touch()
    (tmp_path / "junk").write_bytes(b"junk" * 1000)
    for name in ("missing", "empty", "junk"):
        assert main(["restore", str(tmp_path / name)]) == 1
        assert capsys.readouterr().err.count("\n") == 1
        assert slugs(home) == {slug}
    assert main(["backup", str(tmp_path / "b")]) == 0
    (home / "ckv.sqlite3").write_bytes(b"junk" * 1000)
    assert main(["restore", str(tmp_path / "b")]) == 0
    assert slugs(home) == {slug}


def test_a_backup_overwrites_nothing_and_where_it_cannot_be_written_nothing_is_left(
    home, slug, tmp_path, monkeypatch, capsys
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "mine").write_bytes(b"mine")
    assert main(["backup", str(tmp_path / "mine")]) == 2
    assert (tmp_path / "mine").read_bytes() == b"mine"
    assert main(["backup", str(tmp_path / "no" / "b")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StorageError, match="No space left"):
        sqlite.copy_database(home / "ckv.sqlite3", tmp_path / "b")
    assert {path.name for path in tmp_path.iterdir()} == {"home", "mine"}


def test_what_a_killed_backup_left_is_removed_by_the_next(home, slug, tmp_path):
    for left in (".b.sqlite3.0a1b2c3d.part", ".b.sqlite3.0a1b2c3d.part-journal"):
        (tmp_path / left).write_bytes(b"half")
    (tmp_path / ".c.sqlite3.0a1b2c3d.part").write_bytes(b"of another")
    assert main(["backup", str(tmp_path / "b.sqlite3")]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"home", "b.sqlite3", ".c.sqlite3.0a1b2c3d.part"}


def killed(step: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that kills itself before its n-th change of a file or folder."""
    process = os.fork()
    if process == 0:
        left = step

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & 3
            if writes or event in ("os.rename", "os.link", "os.remove", "os.mkdir"):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(process, 0)[1] != 0


def test_a_restore_killed_at_any_step_never_leaves_an_empty_library(home, slug, tmp_path):
    restored = tmp_path / "b"
    assert main(["backup", str(restored)]) == 0
    second = make_run(home)
    (tmp_path / "saved").mkdir()
    # A log that was not played back, as after a crash: it belongs to the old file.
    with closing(sqlite3.connect(home / "ckv.sqlite3")) as crashed, crashed:
        crashed.execute("UPDATE runs SET title = 'in the log'")
        crashed.commit()
        for path in home.iterdir():
            shutil.copy(path, tmp_path / "saved")
    seen = set()
    for step in count(1):
        shutil.rmtree(home)
        shutil.copytree(tmp_path / "saved", home)
        over = not killed(step, lambda: main(["restore", str(restored)]))
        open_database(default_url(home)).close()
        is_old = whole(home / "ckv.sqlite3") == {slug, second}
        assert is_old is not over
        assert is_old or dump(home / "ckv.sqlite3") == dump(restored)
        seen.add("old" if is_old else "new")
        old = [path for path in home.glob("ckv.sqlite3*") if whole(path) == {slug, second}]
        assert old, "what was there before the restore is gone"
        assert main(["restore", str(restored)]) == 0
        assert slugs(home) == {slug}
        assert not list(home.glob(".*.part*"))
        if over:
            break
    assert seen == {"old", "new"}


def whole(path: Path) -> set[str]:
    """Runs of a database with the log beside it; none if it is no database, or without its log."""
    try:
        with closing(sqlite3.connect(path)) as found:
            rows = found.execute("SELECT slug, title FROM runs").fetchall()
    except sqlite3.Error:
        return set()
    return {slug for slug, title in rows if title == "in the log"}


def test_an_empty_file_is_no_new_library(home, slug):
    (home / "ckv.sqlite3").write_bytes(b"")
    for command in (["export", "--all", "--out", str(home / "x.zip")], ["backup", str(home / "b")]):
        assert main(command) == 1
    with pytest.raises(StorageError, match=r"is empty \(0 bytes\); restore a backup"):
        open_database(default_url(home))
    assert (home / "ckv.sqlite3").read_bytes() == b""


def test_a_new_library_killed_at_any_step_is_whole_or_not_there(home):
    for step in count(1):
        over = not killed(step, lambda: open_database(default_url(home)).close())
        if (home / "ckv.sqlite3").exists():
            assert slugs(home) == set()
        open_database(default_url(home)).close()
        shutil.rmtree(home)
        if over:
            break
    assert step > 3


def test_a_database_is_kept_before_it_is_migrated(home, slug, tmp_path, monkeypatch):
    old = dump(home / "ckv.sqlite3")
    with monkeypatch.context() as patched:
        column = "sa.Column('more', sa.Text(), nullable=True)"
        with_next_schema(tmp_path, patched, f"op.add_column('runs', {column})")
        for _ in range(2):
            open_database(default_url(home)).close()
        assert slugs(home) == {slug}
    (kept,) = home.glob("*.bak")
    assert re.fullmatch(r"ckv\.sqlite3\.schema-tables_[0-9a-f]{8}\.bak", kept.name)
    assert dump(kept) == old
    assert dump(home / "ckv.sqlite3") != old
    with pytest.raises(StorageError, match="another version of the app"):
        open_database(default_url(home))
    assert main(["restore", str(kept)]) == 0
    assert dump(home / "ckv.sqlite3") == old


def test_postgresql_is_not_backed_up_here(home, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CKV_DATABASE_URL", "postgresql://ckv@db.example.org/ckv")
    assert main(["backup", str(tmp_path / "b")]) == 1
    assert "use pg_dump for PostgreSQL" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
