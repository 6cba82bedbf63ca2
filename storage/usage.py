"""What administrators see of runs: which wait, how many are saved, how big. No text."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    ColumnElement,
    LargeBinary,
    Select,
    Text,
    cast,
    func,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import KeyedColumnElement

from storage.models import (
    ACTIVE_STATES,
    ALIVE,
    AnyText,
    Array,
    Base,
    ResultRow,
    Run,
    SampleRow,
)

ROW_BYTES = 300  # about what a row's numbers, keys and indices take


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A run that is not over; UTC, `started_at` is None while it is queued."""

    slug: str
    owner: str | None
    state: str
    kind: str
    model: str
    created_at: datetime
    started_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerUsage:
    """Saved runs of one user, and about their bytes."""

    owner: str | None
    runs: int = 0
    run_bytes: int = 0


def waiting_runs(session: Session) -> list[WaitingRun]:
    """All runs that are not over, oldest first."""
    columns = (Run.slug, Run.owner, Run.state, Run.kind, Run.created_at, Run.started_at)
    rows = session.execute(
        select(*columns, Run.model_name.label("model"))
        .where(Run.state.in_(ACTIVE_STATES))
        .order_by(Run.id)
    )
    return [WaitingRun(**row) for row in rows.mappings()]


def usage_by_owner(session: Session) -> list[OwnerUsage]:
    """Runs that are not deleted; the user with most bytes first."""
    size = func.sum(Run.stored_bytes)
    rows = session.execute(
        select(Run.owner, func.count(), size)
        .where(ALIVE)
        .group_by(Run.owner)
        .order_by(size.desc(), Run.owner)
    )
    return [OwnerUsage(owner=owner, runs=runs, run_bytes=int(b)) for owner, runs, b in rows]


def usage_of(session: Session, owner: str | None) -> OwnerUsage:
    """Runs of one user that are not deleted; of all for None."""
    totals = select(func.count(), func.sum(Run.stored_bytes)).where(ALIVE)
    if owner is not None:
        totals = totals.where(Run.owner == owner)
    runs, size = session.execute(totals).one()
    return OwnerUsage(owner=owner, runs=runs, run_bytes=int(size or 0))


def count_run(session: Session, run_id: int) -> None:
    """Note the bytes of a run's rows as they now are; of many samples `counted` does."""
    of_run = ResultRow.run_id == run_id
    parts = (
        _size(session, Run).where(Run.id == run_id),
        _size(session, SampleRow).where(SampleRow.run_id == run_id),
        _size(session, ResultRow).where(of_run),
        _size(session, Array).join(ResultRow, ResultRow.id == Array.result_id).where(of_run),
    )
    total = sum(session.scalar(part) or 0 for part in parts)
    session.execute(update(Run).where(Run.id == run_id).values(stored_bytes=total))


@contextmanager
def counted(
    session: Session, run_id: int, table: type[Base], *which: ColumnElement[bool]
) -> Iterator[None]:
    """Note by how much these rows of a run, which are changed within, grow or shrink."""
    size = _size(session, table).where(*which)
    before = session.scalar(size) or 0
    yield
    session.flush()
    grown = (session.scalar(size) or 0) - before
    own = update(Run).where(Run.id == run_id)
    session.execute(own.values(stored_bytes=Run.stored_bytes + grown))


def database_bytes(session: Session) -> int:
    if session.get_bind().dialect.name == "sqlite":
        size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    else:
        size = "SELECT pg_database_size(current_database())"
    return session.scalar(text(size)) or 0


def _size(session: Session, table: type[Base]) -> Select[int]:
    """Bytes of rows of a table: its texts, JSON and arrays, and about the rest."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"

    def size(column: KeyedColumnElement[Any]) -> ColumnElement[int]:
        is_blob = isinstance(column.type, LargeBinary)
        if not is_sqlite:
            return func.octet_length(column if is_blob else cast(column, Text))
        # Without reading it, but for texts, whose length would be that in characters.
        return func.length(column if is_blob else cast(column, LargeBinary))

    total: ColumnElement[int] = literal(ROW_BYTES)
    for column in table.__table__.columns:
        if isinstance(column.type, AnyText | JSON | LargeBinary):
            total += func.coalesce(size(column), 0)
    return select(func.sum(total)).select_from(table)
