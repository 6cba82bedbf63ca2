"""Laws of the server lock: one holder per file however named, free again however it ends."""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from ckv_core.errors import StorageError
from storage.database import default_url, open_database
from storage.servers import only_server
from storage.sqlite import hold
from tests.processes import forked, python

pytestmark = pytest.mark.slow

READER = """
import sqlite3, sys
sqlite3.connect(sys.argv[1], timeout=0).execute("SELECT * FROM t")
"""


@contextmanager
def held(url: str) -> Iterator[ForkProcess]:
    """Another process that serves the database."""
    with forked(serve, url) as (holder, served):
        assert served.recv()
        yield holder


def serve(url: str, served: Connection | None = None) -> None:
    """Serve the database; where somebody listens, until they let go."""
    with closing(open_database(url)) as database, only_server(database):
        if served is not None:
            served.send(True)
            served.recv()


def link(file: Path, elsewhere: Path) -> str:
    elsewhere.mkdir()
    (elsewhere / "other.sqlite3").symlink_to(file)
    return f"sqlite:///{elsewhere}/other.sqlite3"


def linked_folder(file: Path, elsewhere: Path) -> str:
    elsewhere.symlink_to(file.parent)
    return default_url(elsewhere)


def uri(file: Path, elsewhere: Path) -> str:
    return f"sqlite:///file:{file.parent}/%63kv.sqlite3?uri=true"


def second_name(file: Path, elsewhere: Path) -> str:
    elsewhere.mkdir()
    os.link(file, elsewhere / "ckv.sqlite3")
    return default_url(elsewhere)


def moved(file: Path, elsewhere: Path) -> str:
    elsewhere.mkdir()
    file.replace(elsewhere / "ckv.sqlite3")
    return default_url(elsewhere)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has locks of open files")
NAMES = [link, linked_folder, uri, second_name, pytest.param(moved, marks=on_linux)]


def test_a_second_server_is_refused_until_the_first_is_gone(tmp_path):
    url = default_url(tmp_path / "home")
    with held(url) as holder:
        with pytest.raises(StorageError, match="Another CriticalKV Lab serves"):
            serve(url)
        holder.kill()
        holder.join()
        serve(url)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_server_is_refused_by_any_other_name(tmp_path, name):
    with held(default_url(tmp_path / "home")):
        other = name(tmp_path / "home" / "ckv.sqlite3", tmp_path / "elsewhere")
        with pytest.raises(StorageError, match=r"Another CriticalKV Lab serves|a second name"):
            serve(other)


def test_the_lock_leaves_the_locks_of_sqlite_alone(tmp_path):
    file = tmp_path / "ckv.sqlite3"
    with (
        closing(sqlite3.connect(file, isolation_level=None)) as ours,
        closing(sqlite3.connect(file, timeout=0)),
    ):
        ours.execute("CREATE TABLE t (a)")
        ours.execute("BEGIN EXCLUSIVE")
        with hold(file, "it"):
            pass
        with hold(file, "it"):
            _, told = python(READER, file).communicate()
        assert "database is locked" in told
