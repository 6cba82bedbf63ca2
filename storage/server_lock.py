"""One server per SQLite database: a second would take the first one's live runs for dead."""

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from ckv_core.errors import StorageError
from storage.database import Database


@contextmanager
def only_server(database: Database) -> Iterator[None]:
    """Hold the database for this process; the system lets go if the process dies.

    Only SQLite is held.

    Raises:
        StorageError: another server holds it.
    """
    url = database.engine.url
    if url.get_backend_name() != "sqlite":
        yield
        return
    lock = FileLock(f"{url.database}.server.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StorageError(
            f"Another CriticalKV Lab serves {database.name}; use that one, stop it, or set "
            "CKV_HOME to another folder."
        ) from None
    try:
        yield
    finally:
        lock.release()
