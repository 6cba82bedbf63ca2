"""Share links: who has a token sees its run. Only its hash is stored."""

from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from storage.credentials import ShareRecord, hash_token, new_token
from storage.models import ALIVE, Run, ShareLink
from storage.records import record_of
from storage.repository import missing_run


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
