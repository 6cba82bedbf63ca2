"""What administrators see of the runs of all: who waits, how many are saved, how big. No text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import LargeBinary, Text, cast, func, select, text
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.elements import ColumnElement

from storage.models import ACTIVE_STATES, ALIVE, Array, Prompt, Run, Variant

_BLOBS = (Prompt.token_ids, Prompt.pieces, Prompt.own_indices)
_TEXTS = (Prompt.context, Prompt.question)


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


@dataclass(slots=True, kw_only=True)
class OwnerUsage:
    """Saved runs of one user, and the bytes of their texts, tokens and arrays."""

    owner: str | None
    runs: int
    bytes: int


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
    """Runs that are not deleted, the user with most bytes first."""
    counted = select(Run.owner, func.count()).where(ALIVE).group_by(Run.owner)
    found = {
        owner: OwnerUsage(owner=owner, runs=runs, bytes=0)
        for owner, runs in session.execute(counted)
    }
    parts = (
        select(Run.owner, _sum(session, (*_BLOBS, *_TEXTS))).join(Prompt, Prompt.run_id == Run.id),
        select(Run.owner, _sum(session, (Variant.document,))).join(
            Variant, Variant.run_id == Run.id
        ),
        select(Run.owner, _sum(session, (Array.data,)))
        .join(Variant, Variant.run_id == Run.id)
        .join(Array, Array.variant_id == Variant.id),
    )
    for part in parts:
        for owner, size in session.execute(part.where(ALIVE).group_by(Run.owner)):
            found[owner].bytes += size
    return sorted(found.values(), key=lambda usage: (-usage.bytes, usage.owner or ""))


def database_bytes(session: Session) -> int:
    """Size of the whole database."""
    if session.get_bind().dialect.name == "sqlite":
        size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    else:
        size = "SELECT pg_database_size(current_database())"
    return session.scalar(text(size)) or 0


def _sum(session: Session, columns: Sequence[InstrumentedAttribute[Any]]) -> ColumnElement[int]:
    is_sqlite = session.get_bind().dialect.name == "sqlite"

    def size(column: InstrumentedAttribute[Any]) -> ColumnElement[int]:
        if not is_sqlite:
            return func.octet_length(cast(column, Text) if column is Variant.document else column)
        # Without reading it, but for texts, whose length would be that in characters.
        is_blob = isinstance(column.type, LargeBinary)
        return func.length(column if is_blob else cast(column, LargeBinary))

    total: ColumnElement[int] = func.coalesce(size(columns[0]), 0)
    for column in columns[1:]:
        total += func.coalesce(size(column), 0)
    return func.sum(total)
