"""The audit log: who did what, when, and to which run or user. Takes a Session, never commits.

An entry is written in the transaction of what it tells, so neither exists without the other.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from sqlalchemy import delete, or_, select
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
]
ACTIONS: tuple[Action, ...] = get_args(Action)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which entries; empty for all."""

    actor: str = ""
    action: str = ""
    target: str = ""
    since: datetime | None = None


def record(session: Session, actor: str | None, action: Action, target: object = "") -> None:
    """Add an entry, and let go of those that are too old or too many."""
    now = datetime.now(UTC)
    entry = AuditEntry(at=now, actor=actor, action=action, target=str(target))
    session.add(entry)
    session.flush()
    oldest = entry.id - KEPT_ENTRIES
    session.execute(
        delete(AuditEntry).where(or_(AuditEntry.id <= oldest, AuditEntry.at < now - KEPT))
    )


def list_entries(session: Session, wanted: AuditFilter, limit: int) -> list[AuditRecord]:
    """The newest that pass the filter, newest first."""
    statement = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    equal = {
        AuditEntry.actor: wanted.actor,
        AuditEntry.action: wanted.action,
        AuditEntry.target: wanted.target,
    }
    statement = statement.where(*(column == value for column, value in equal.items() if value))
    if wanted.since is not None:
        statement = statement.where(AuditEntry.at >= wanted.since)
    return [record_of(AuditRecord, row) for row in session.scalars(statement)]
