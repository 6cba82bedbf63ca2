"""Laws of the server lock: one holder per file however named, free again however it ends."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from ckv_core.errors import StorageError
from storage.database import default_url, open_database
from storage.servers import only_server
from tests.processes import forked

pytestmark = pytest.mark.slow


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


def test_a_second_server_is_refused_until_the_first_is_gone(tmp_path):
    url = default_url(tmp_path / "home")
    with held(url) as holder:
        with pytest.raises(StorageError, match="Another CriticalKV Lab serves"):
            serve(url)
        holder.kill()
        holder.join()
        serve(url)


@pytest.mark.parametrize("name", [link, linked_folder])
def test_a_second_server_is_refused_by_any_other_name(tmp_path, name):
    with held(default_url(tmp_path / "home")):
        other = name(tmp_path / "home" / "ckv.sqlite3", tmp_path / "elsewhere")
        with pytest.raises(StorageError, match="Another CriticalKV Lab serves"):
            serve(other)
