"""What administrators see of runs and studies: who waits, how many are saved, how big. No text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import LargeBinary, Select, Text, cast, func, select, text
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.elements import ColumnElement

from storage.models import ACTIVE_STATES, ALIVE, Array, Prompt, Run, Variant
from storage.study_models import StudyResult, StudyRow, StudySample

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
    """Saved runs and studies of one user, and the bytes of their texts, tokens and arrays."""

    owner: str | None
    runs: int = 0
    studies: int = 0
    bytes: int = 0


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
    """Runs that are not deleted, and studies; the user with most bytes first."""
    owners: dict[str | None, OwnerUsage] = {}

    def of(owner: str | None) -> OwnerUsage:
        name = owner or None  # without logins a run's owner is null, a study's is empty
        return owners.setdefault(name, OwnerUsage(owner=name))

    runs = select(Run.owner, func.count()).where(ALIVE).group_by(Run.owner)
    for owner, count in session.execute(runs):
        of(owner).runs = count
    studies = select(StudyRow.owner, func.count()).group_by(StudyRow.owner)
    for owner, count in session.execute(studies):
        of(owner).studies = count
    for part in (*_run_sizes(session), *_study_sizes(session)):
        for owner, size in session.execute(part):
            of(owner).bytes += size
    return sorted(owners.values(), key=lambda usage: (-usage.bytes, usage.owner or ""))


def _run_sizes(session: Session) -> Iterator[Select[Any, int]]:
    """Bytes by owner, of each table of runs."""
    parts = (
        select(Run.owner, _sum(session, (*_BLOBS, *_TEXTS))).join(Prompt, Prompt.run_id == Run.id),
        select(Run.owner, _sum(session, (Variant.document,))).join(
            Variant, Variant.run_id == Run.id
        ),
        select(Run.owner, _sum(session, (Array.data,)))
        .join(Variant, Variant.run_id == Run.id)
        .join(Array, Array.variant_id == Variant.id),
    )
    yield from (part.where(ALIVE).group_by(Run.owner) for part in parts)


def _study_sizes(session: Session) -> Iterator[Select[Any, int]]:
    """Bytes by owner, of each table of studies."""
    for columns in ((StudySample.context, StudySample.details), (StudyResult.text,)):
        table = columns[0].class_
        size = select(StudyRow.owner, _sum(session, columns))
        yield size.join(table, table.study_id == StudyRow.id).group_by(StudyRow.owner)


def database_bytes(session: Session) -> int:
    if session.get_bind().dialect.name == "sqlite":
        size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    else:
        size = "SELECT pg_database_size(current_database())"
    return session.scalar(text(size)) or 0


def _sum(session: Session, columns: Sequence[InstrumentedAttribute[Any]]) -> ColumnElement[int]:
    is_sqlite = session.get_bind().dialect.name == "sqlite"

    def size(column: InstrumentedAttribute[Any]) -> ColumnElement[int]:
        is_blob = isinstance(column.type, LargeBinary)
        if not is_sqlite:
            return func.octet_length(column if is_blob else cast(column, Text))
        # Without reading it, but for texts, whose length would be that in characters.
        return func.length(column if is_blob else cast(column, LargeBinary))

    total: ColumnElement[int] = func.coalesce(size(columns[0]), 0)
    for column in columns[1:]:
        total += func.coalesce(size(column), 0)
    return func.sum(total)
