"""Sessions, API tokens, share links, and who is disabled. Takes a Session, never commits.

Only a token's hash is stored: nobody can log in with what the database holds.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from storage import audit
from storage.models import ALIVE, Account, Credential, Run, ShareLink
from storage.records import record_of
from storage.repository import missing_run

Kind = Literal["session", "token"]
Scope = Literal["read", "write", "all"]
TOKEN_BYTES = 32
TOKEN_PREFIX = "ckv_"  # noqa: S105 - so that people and scanners know what they see
TOUCHED_EVERY = timedelta(minutes=1)
KEPT_CLOSED = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A session, API token or share link; the token itself is shown once and not stored.

    Attributes:
        created_at, expires_at, revoked_at: UTC; None for no expiry, and for not revoked.
    """

    id: int
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    def is_open(self, now: datetime) -> bool:
        """Whether the token still opens something."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRecord(TokenRecord):
    """One session or API token; `last_used_at` is None for never."""

    kind: Kind
    owner: str
    scope: Scope
    name: str
    password_mark: str | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRecord(TokenRecord):
    """One link to a run as its owner sees it."""

    creator: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRecord:
    """What is known of a user beside the users' file; UTC, None for never."""

    disabled_at: datetime | None = None
    last_login_at: datetime | None = None


def new_token(prefix: str = "") -> str:
    """256 random bits as text."""
    return prefix + secrets.token_urlsafe(TOKEN_BYTES)


def hash_token(token: str) -> str:
    """What is stored of a token."""
    # A random token of this length needs no slow hash: there is nothing to guess.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def create_session(
    session: Session, owner: str, password_mark: str, *, now: datetime, lasts: timedelta
) -> str:
    """Start a browser's session; returns its token."""
    token = new_token()
    session.add(
        Credential(
            token_hash=hash_token(token),
            kind="session",
            owner=owner,
            scope="all",
            name="",
            password_mark=password_mark,
            created_at=now,
            expires_at=now + lasts,
        )
    )
    return token


def create_token(
    session: Session, owner: str, scope: Scope, name: str, *, now: datetime, days: int | None
) -> tuple[int, str]:
    """Make an API token; returns its number and the token."""
    token = new_token(TOKEN_PREFIX)
    row = Credential(
        token_hash=hash_token(token),
        kind="token",
        owner=owner,
        scope=scope,
        name=name,
        created_at=now,
        expires_at=None if days is None else now + timedelta(days=days),
    )
    session.add(row)
    session.flush()
    return row.id, token


def find(session: Session, token: str, kind: Kind, now: datetime) -> CredentialRecord | None:
    """What this token is; None for an unknown, expired or revoked one, or a disabled owner."""
    row = session.execute(
        select(Credential, Account.disabled_at)
        .outerjoin(Account, Account.name == Credential.owner)
        .where(Credential.token_hash == hash_token(token), Credential.kind == kind)
    ).one_or_none()
    if row is None or row.disabled_at is not None:
        return None
    credential = record_of(CredentialRecord, row.Credential)
    return credential if credential.is_open(now) else None


def touch(session: Session, credential_id: int, now: datetime) -> None:
    """Note that it was used."""
    session.execute(
        update(Credential).where(Credential.id == credential_id).values(last_used_at=now)
    )


def list_credentials(session: Session, kind: Kind, owner: str | None) -> list[CredentialRecord]:
    """All of one user, or of everybody for None, newest first."""
    wanted = select(Credential).where(Credential.kind == kind).order_by(Credential.id.desc())
    if owner is not None:
        wanted = wanted.where(Credential.owner == owner)
    return [record_of(CredentialRecord, row) for row in session.scalars(wanted)]


def revoke(
    session: Session, credential_id: int, now: datetime, owner: str | None = None
) -> CredentialRecord | None:
    """Close one, of this owner if one is given; what it was, or None if nothing was open."""
    wanted = select(Credential).where(Credential.id == credential_id)
    if owner is not None:
        wanted = wanted.where(Credential.owner == owner)
    row = session.scalar(wanted.where(Credential.revoked_at.is_(None)).with_for_update())
    if row is None:
        return None
    row.revoked_at = now
    return record_of(CredentialRecord, row)


def revoke_all(session: Session, owner: str, now: datetime, kind: Kind | None = None) -> int:
    """Close all of a user, of one kind if one is given; returns how many were open."""
    statement = update(Credential).where(Credential.owner == owner, Credential.revoked_at.is_(None))
    if kind is not None:
        statement = statement.where(Credential.kind == kind)
    revoked = statement.values(revoked_at=now).returning(Credential.id)
    return len(session.scalars(revoked).all())


def purge(session: Session, now: datetime) -> None:
    """Forget what has been closed for a month, unless the clock jumped over that month."""
    if not audit.has_passed(session, now, KEPT_CLOSED, 3):
        return
    before = now - KEPT_CLOSED
    session.execute(
        delete(Credential).where(
            or_(Credential.revoked_at < before, Credential.expires_at < before)
        )
    )


def is_disabled(session: Session, user: str) -> bool:
    """Whether an administrator shut this user out."""
    row = session.scalar(select(Account.disabled_at).where(Account.name == user))
    return row is not None


def set_disabled(session: Session, user: str, at: datetime | None) -> bool:
    """Shut a user out, or in again for None; False if nothing changed."""
    account = _account(session, user)
    if (account.disabled_at is None) == (at is None):
        return False
    account.disabled_at = at
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


# --- share links: a token opens its run ----------------------------------------------


def create_share(
    session: Session, slug: str, creator: str | None, now: datetime, expires_at: datetime | None
) -> str:
    """Make a link to a run; returns its token, 256 random bits.

    Raises:
        RunMissingError: there is no such run.
    """
    run_id = session.scalar(select(Run.id).where(Run.slug == slug))
    if run_id is None:
        raise missing_run(slug)
    token = new_token()
    link = {"creator": creator, "created_at": now, "expires_at": expires_at}
    session.add(ShareLink(run_id=run_id, token_hash=hash_token(token), **link))
    session.flush()
    return token


def shared_slug(session: Session, token: str, now: datetime) -> str | None:
    """The run that a token opens; None for a wrong, an expired and a revoked one alike.

    All three take the same one look-up by hash.
    """
    row = session.execute(
        select(Run.slug, ShareLink)
        .join(Run, Run.id == ShareLink.run_id)
        .where(ShareLink.token_hash == hash_token(token), ALIVE)
    ).one_or_none()
    return row.slug if row and record_of(ShareRecord, row.ShareLink).is_open(now) else None


def list_shares(session: Session, slug: str) -> list[ShareRecord]:
    """All links of a run, newest first."""
    of_run = select(ShareLink).join(Run, Run.id == ShareLink.run_id).where(Run.slug == slug)
    rows = session.scalars(of_run.order_by(ShareLink.id.desc()))
    return [record_of(ShareRecord, row) for row in rows]


def revoke_share(session: Session, slug: str, share_id: int, now: datetime) -> bool:
    """Close one link of this run; False if it has none of that number that is open."""
    run_id = select(Run.id).where(Run.slug == slug).scalar_subquery()
    closed = update(ShareLink).where(
        ShareLink.id == share_id, ShareLink.run_id == run_id, ShareLink.revoked_at.is_(None)
    )
    return session.scalar(closed.values(revoked_at=now).returning(ShareLink.id)) is not None
