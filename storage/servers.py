"""Which servers live: one per SQLite file; on PostgreSQL any number, each known by a lock.

On SQLite no run names a server. Queries take a Session and never commit.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from storage.database import Database
from storage.models import ACTIVE_STATES, Run
from storage.sqlite import hold, sqlite_file

LOGGER = logging.getLogger(__name__)
CHECK_INTERVAL_S = 5.0
# PostgreSQL then notices within a minute that a whole machine is gone, not within hours.
_KEEPALIVE = (
    "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"
)
_IS_ACTIVE = Run.state.in_(ACTIVE_STATES)


@contextmanager
def only_server(database: Database) -> Iterator[None]:
    """Be a server of this database; the others see at once if the process dies.

    A SQLite file has one server at a time, and StorageError meets a second: it would take the
    first one's runs for dead. On PostgreSQL each holds an advisory lock on a connection of its own.
    """
    if database.server is None:
        with hold(sqlite_file(database.engine.url), database.name):
            yield
        return
    with database.explained():
        connection = _take(database.engine, database.server)
    stop = threading.Event()
    held = (database.engine, database.server, connection, stop)
    keeper = threading.Thread(target=_keep, args=held, name="server-lock", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        keeper.join(CHECK_INTERVAL_S)


def _take(engine: Engine, server: int) -> Connection:
    """A connection outside of the pool that holds the lock as long as it is open."""
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        connection.detach()
        connection.exec_driver_sql(_KEEPALIVE)
        connection.execute(select(func.pg_advisory_lock(server)))
    except BaseException:
        connection.close()
        raise
    return connection


def _keep(engine: Engine, server: int, connection: Connection, stop: threading.Event) -> None:
    """Take the lock again when its connection was lost, as after a restart of PostgreSQL."""
    while not stop.wait(CHECK_INTERVAL_S):
        try:
            if connection.closed:
                connection = _take(engine, server)
            connection.execute(select(1))
        except SQLAlchemyError:
            LOGGER.warning("The database is out of reach; trying again.")
            connection.close()
    connection.close()


def gone_servers(session: Session) -> list[int]:
    """The servers of unfinished runs that live no more."""
    named = select(Run.server).where(_IS_ACTIVE, Run.server.is_not(None)).distinct()
    known = session.scalars(named).all()
    return [server for server in known if server is not None and is_gone(session, server)]


def is_gone(session: Session, server: int) -> bool:
    """Whether a server of this PostgreSQL lives no more."""
    # A lock that is free is taken until the transaction ends, so one server buries another.
    return bool(session.scalar(select(func.pg_try_advisory_xact_lock(server))))


def ahead_elsewhere(session: Session, slug: str, server: int | None) -> int | None:
    """How many unfinished runs come before an unfinished one that lives in another server.

    Returns:
        None if the run is over, or lives in this server.
    """
    if server is None:
        return None
    run = select(Run.id, Run.server).where(Run.slug == slug, _IS_ACTIVE, Run.server != server)
    row = session.execute(run).one_or_none()
    if row is None:
        return None
    before = select(func.count()).where(_IS_ACTIVE, Run.server == row.server, Run.id < row.id)
    return session.scalar(before)
