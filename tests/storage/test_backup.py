"""Backups equal the database; a new library is whole or not there."""

import os
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
from tests.storage.conftest import record

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


def test_a_backup_taken_while_the_database_is_in_use_has_what_was_committed(home, slug, tmp_path):
    with closing(open_database(default_url(home))) as database, database.write() as session:
        create_run(session, RunRequest(context="c"), "open", datetime.now(UTC))
        assert main(["backup", str(tmp_path / "ckv.sqlite3")]) == 0
    assert slugs(tmp_path) == {slug} < slugs(home)
    open_database(default_url(tmp_path)).close()


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


def test_postgresql_is_not_backed_up_here(home, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CKV_DATABASE_URL", "postgresql://ckv@db.example.org/ckv")
    assert main(["backup", str(tmp_path / "b")]) == 1
    assert "use pg_dump for PostgreSQL" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
