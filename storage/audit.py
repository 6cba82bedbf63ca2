"""The audit log: who did what, when, and to which run or user. Takes a Session, never commits.

An entry is written in the transaction of its act, so neither exists without the other.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from storage.models import AuditEntry
from storage.records import record_of

Action = Literal[
    "signed in",
    "failed to sign in",
    "signed out",
    "made token",
    "revoked token",
    "shared",
    "revoked share",
    "exported",
    "imported",
    "deleted",
    "restored",
    "cancelled",
    "disabled user",
    "enabled user",
    "took over",
]
KEPT_ENTRIES = 100_000
KEPT = timedelta(days=366)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One entry.

    Attributes:
        at: UTC.
        actor: the user; None for the one user without logins, a share link or the command line.
        target: slug of a run, name of a user or number of a token; never a text of a run.
    """

    id: int
    at: datetime
    actor: str | None
    action: str
    target: str


def record(
    session: Session, actor: str | None, action: Action, target: object = "", *more: object
) -> None:
    """Add an entry of each target, and let go of those that are too old or too many."""
    now = datetime.now(UTC)
    targets = map(str, (target, *more))
    entries = [AuditEntry(at=now, actor=actor, action=action, target=each) for each in targets]
    session.add_all(entries)
    session.flush()
    session.execute(delete(AuditEntry).where(AuditEntry.id <= entries[-1].id - KEPT_ENTRIES))
    first = session.scalar(select(AuditEntry.at).order_by(AuditEntry.id).limit(1))
    if first is not None and first < now - KEPT and has_passed(session, now, KEPT, 12):
        session.execute(delete(AuditEntry).where(AuditEntry.at < now - KEPT))


def has_passed(session: Session, now: datetime, span: timedelta, parts: int) -> bool:
    """Whether the clock went through the time before `now`, as an entry of each part of it shows.

    A clock that jumped forward did not; what is old by it alone is kept.
    """
    part = span / parts
    begins = [now - part * (number + 1) for number in range(parts)]
    return all(
        session.scalar(
            select(AuditEntry.id).where(AuditEntry.at >= at, AuditEntry.at < at + part).limit(1)
        )
        is not None
        for at in begins
    )


def list_entries(session: Session, limit: int) -> list[AuditRecord]:
    """The newest, newest first."""
    newest = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    return [record_of(AuditRecord, row) for row in session.scalars(newest)]
