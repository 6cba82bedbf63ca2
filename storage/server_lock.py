"""One server per SQLite database: a second would take the first one's live runs for dead."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ckv_core.errors import StorageError

if TYPE_CHECKING:  # storage.database itself needs this module, by way of storage.backup
    from storage.database import Database


@contextmanager
def only_server(database: "Database") -> Iterator[None]:
    """Hold the database for this process; the system lets go if the process dies.

    Only SQLite is held.

    Raises:
        StorageError: another server holds it.
    """
    url = database.engine.url
    if url.get_backend_name() != "sqlite":
        yield
        return
    with hold(str(url.database), database.name):
        yield


@contextmanager
def hold(path: str, name: str) -> Iterator[None]:
    """Hold the SQLite file `path`.

    Raises:
        StorageError: a server holds it; the sentence calls it `name`.
    """
    lock = FileLock(f"{path}.server.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StorageError(
            f"Another CriticalKV Lab serves {name}; use that one, stop it, or set "
            "CKV_HOME to another folder."
        ) from None
    try:
        yield
    finally:
        lock.release()
