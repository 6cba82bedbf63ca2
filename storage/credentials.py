"""Sessions, API tokens, share links, and who is disabled. Takes a Session, never commits.

Only a token's hash is stored: nobody can log in with what the database holds.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import and_, delete, or_, select, update
from sqlalchemy.orm import Session

from storage import audit
from storage.models import ALIVE, Account, Credential, Run
from storage.records import record_of

Kind = Literal["session", "token", "share"]
Scope = Literal["read", "write", "all"]
TOKEN_BYTES = 32
TOKEN_PREFIX = "ckv_"  # noqa: S105 - so that people and scanners know what they see
TOUCHED_EVERY = timedelta(minutes=1)
KEPT_CLOSED = timedelta(days=30)
_IS_LOGIN = Credential.kind != "share"
# When it is made, and when it is revoked.
_ACTS: dict[str, tuple[audit.Action, audit.Action]] = {
    "session": ("signed in", "signed out"),
    "token": ("made token", "revoked token"),
    "share": ("shared", "revoked share"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRecord:
    """A session, API token or share link; the token itself is shown once and not stored.

    Attributes:
        owner: who logs in with it or made the link; None without logins.
        run_id: key of the run that a share link opens.
        created_at, expires_at, revoked_at, last_used_at: UTC; None for no expiry, and for never.
    """

    id: int
    owner: str | None
    scope: Scope
    name: str
    run_id: int | None
    password_mark: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    def is_open(self, now: datetime) -> bool:
        """Whether the token still opens something."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRecord:
    """What is known of a user beside the users' file; UTC, None for never."""

    disabled_at: datetime | None = None
    last_login_at: datetime | None = None


def hash_token(token: str) -> str:
    """What is stored of a token."""
    # A random token of this length needs no slow hash: there is nothing to guess.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def create(
    session: Session,
    actor: str | None,
    kind: Kind,
    *,
    now: datetime,
    days: float | None,
    **columns: Any,
) -> str:
    """Make a session, token or link that works so many days, None for ever; returns its secret."""
    token = (TOKEN_PREFIX if kind == "token" else "") + secrets.token_urlsafe(TOKEN_BYTES)
    ends = None if days is None else now + timedelta(days)
    row = Credential(
        token_hash=hash_token(token), kind=kind, created_at=now, expires_at=ends, **columns
    )
    session.add(row)
    session.flush()
    audit.record(session, actor, _ACTS[kind][0], _target(session, row))
    return token


def _target(session: Session, row: Credential) -> object:
    """What the audit log has of one: the number of a token, the run of a link."""
    if row.kind == "share":
        return session.scalar(select(Run.slug).where(Run.id == row.run_id))
    return row.id if row.kind == "token" else ""


def find(session: Session, token: str, kind: Kind, now: datetime) -> CredentialRecord | None:
    """What this token is; None for an unknown, expired or revoked one, or a disabled login."""
    by_owner = and_(Account.name == Credential.owner, _IS_LOGIN)
    row = session.execute(
        select(Credential, Account.disabled_at)
        .outerjoin(Account, by_owner)
        .where(Credential.token_hash == hash_token(token), Credential.kind == kind)
    ).one_or_none()
    if row is None or row.disabled_at is not None:
        return None
    credential = record_of(CredentialRecord, row.Credential)
    return credential if credential.is_open(now) else None


def shared_slug(session: Session, token: str, now: datetime) -> str | None:
    """The run that a token opens; None for a wrong, an expired and a revoked one alike."""
    if (link := find(session, token, "share", now)) is None:
        return None
    return session.scalar(select(Run.slug).where(Run.id == link.run_id, ALIVE))


def touch(session: Session, credential_id: int, now: datetime) -> None:
    """Note that it was used."""
    session.execute(
        update(Credential).where(Credential.id == credential_id).values(last_used_at=now)
    )


def list_credentials(session: Session, /, **which: Any) -> list[CredentialRecord]:
    """Those whose columns have these values, newest first."""
    wanted = select(Credential).filter_by(**which).order_by(Credential.id.desc())
    return [record_of(CredentialRecord, row) for row in session.scalars(wanted)]


def revoke(
    session: Session, actor: str | None, now: datetime, **which: Any
) -> CredentialRecord | None:
    """Close the one whose columns have these values; what it was, or None if it was not open."""
    wanted = select(Credential).filter_by(revoked_at=None, **which)
    row = session.scalar(wanted.with_for_update())
    if row is None:
        return None
    row.revoked_at = now
    audit.record(session, actor, _ACTS[row.kind][1], _target(session, row))
    return record_of(CredentialRecord, row)


def purge(session: Session, now: datetime) -> None:
    """Forget logins that have been closed for a month, unless the clock jumped over that month."""
    if not audit.has_passed(session, now, KEPT_CLOSED, 3):
        return
    before = now - KEPT_CLOSED
    is_closed = or_(Credential.revoked_at < before, Credential.expires_at < before)
    session.execute(delete(Credential).where(_IS_LOGIN, is_closed))


def is_disabled(session: Session, user: str) -> bool:
    """Whether an administrator shut this user out."""
    row = session.scalar(select(Account.disabled_at).where(Account.name == user))
    return row is not None


def set_disabled(session: Session, actor: str | None, user: str, at: datetime | None) -> bool:
    """Shut a user out and end the sessions and tokens, or let in again; False for no change."""
    account = _account(session, user)
    if (account.disabled_at is None) == (at is None):
        return False
    account.disabled_at = at
    if at is not None:
        own = update(Credential).where(Credential.owner == user, _IS_LOGIN)
        session.execute(own.where(Credential.revoked_at.is_(None)).values(revoked_at=at))
    audit.record(session, actor, "enabled user" if at is None else "disabled user", user)
    return True


def note_login(session: Session, user: str, now: datetime) -> None:
    """Remember when a user gave the password."""
    _account(session, user).last_login_at = now


def accounts(session: Session) -> dict[str, AccountRecord]:
    """What is known of users, by name."""
    return {row.name: record_of(AccountRecord, row) for row in session.scalars(select(Account))}


def _account(session: Session, user: str) -> Account:
    account = session.get(Account, user, with_for_update=True)
    if account is None:
        account = Account(name=user)
        session.add(account)
        session.flush()
    return account
