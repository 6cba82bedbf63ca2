"""Owners' runs, and share links: who has a token sees its run. Only its hash is stored."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from storage.credentials import hash_token, new_token
from storage.models import ALIVE, Run, ShareLink
from storage.records import record_of
from storage.repository import missing_run


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRecord:
    """One link as its owner sees it; the token itself is shown once and then known to nobody here.

    Attributes:
        created_at, expires_at, revoked_at: UTC; None for no expiry, and for not revoked.
    """

    id: int
    creator: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


def saved_runs(session: Session, owner: str | None) -> int:
    """How many runs there are that are not deleted; of this owner alone if one is given."""
    statement = select(func.count()).select_from(Run).where(ALIVE)
    if owner is not None:
        statement = statement.where(Run.owner == owner)
    return session.scalar(statement) or 0


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
    session.add(
        ShareLink(
            run_id=run_id,
            token_hash=hash_token(token),
            creator=creator,
            created_at=now,
            expires_at=expires_at,
        )
    )
    session.flush()
    return token


def shared_slug(session: Session, token: str, now: datetime) -> str | None:
    """The run that a token opens; None for a wrong, an expired and a revoked one alike.

    All three take the same one look-up by hash.
    """
    row = session.execute(
        select(Run.slug, ShareLink.expires_at, ShareLink.revoked_at)
        .join(Run, Run.id == ShareLink.run_id)
        .where(ShareLink.token_hash == hash_token(token), ALIVE)
    ).one_or_none()
    if row is None:
        return None
    slug, expires_at, revoked_at = row
    is_open = revoked_at is None and (expires_at is None or now < expires_at)
    return str(slug) if is_open else None


def list_shares(session: Session, slug: str) -> list[ShareRecord]:
    """All links of a run, newest first."""
    rows = session.scalars(
        select(ShareLink)
        .join(Run, Run.id == ShareLink.run_id)
        .where(Run.slug == slug)
        .order_by(ShareLink.id.desc())
    )
    return [record_of(ShareRecord, row) for row in rows]


def count_open_shares(session: Session, slug: str, now: datetime) -> int:
    """How many links of a run still open it."""
    statement = (
        select(func.count())
        .select_from(ShareLink)
        .join(Run, Run.id == ShareLink.run_id)
        .where(Run.slug == slug, ShareLink.revoked_at.is_(None))
        .where(ShareLink.expires_at.is_(None) | (ShareLink.expires_at > now))
    )
    return session.scalar(statement) or 0


def revoke_share(session: Session, slug: str, share_id: int, now: datetime) -> bool:
    """Close one link of this run; False if it has none of that number that is open."""
    run_id = select(Run.id).where(Run.slug == slug).scalar_subquery()
    statement = (
        update(ShareLink)
        .where(ShareLink.id == share_id, ShareLink.run_id == run_id)
        .where(ShareLink.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(ShareLink.id)
    )
    return session.scalar(statement) is not None
