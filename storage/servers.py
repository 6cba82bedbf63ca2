"""Queries on which server an unfinished run lives in. Take a Session, never commit.

On SQLite no run names a server: there is one at a time, see storage/server_lock.py.
"""

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from storage.models import ACTIVE_STATES, Run

_IS_ACTIVE = Run.state.in_(ACTIVE_STATES)


def assign(session: Session, slug: str, server: int | None) -> None:
    """Note the server in which a run lives."""
    session.execute(update(Run).where(Run.slug == slug).values(server=server))


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
        None if the run is over, or lives in the server that asks.
    """
    if server is None:
        return None
    run = select(Run.id, Run.server).where(Run.slug == slug, _IS_ACTIVE, Run.server != server)
    row = session.execute(run).one_or_none()
    if row is None:
        return None
    before = select(func.count()).where(_IS_ACTIVE, Run.server == row.server, Run.id < row.id)
    return session.scalar(before)
