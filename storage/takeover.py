"""Runs that nobody owns, once there are logins. Takes a Session, never commits."""

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from ckv_core.studies.records import MAX_NAME
from storage import audit
from storage.models import ALIVE, OF_SAMPLES, SLUG_LENGTH, Run

_OF_NOBODY = Run.owner.is_(None)


def count_of_nobody(session: Session) -> int:
    """How many runs have no owner, those that are deleted included."""
    return session.scalar(select(func.count()).where(_OF_NOBODY)) or 0


def are_runs_of_nobody(session: Session) -> bool:
    """Whether a run that is not deleted has no owner."""
    return session.scalar(select(Run.id).where(_OF_NOBODY, ALIVE).limit(1)) is not None


def take_over(session: Session, owner: str, actor: str | None) -> int:
    """Give every run without an owner to a user; returns how many there were.

    A run of many samples whose name the user has already is then called by its name and its slug.
    """
    own = select(Run.title).where(OF_SAMPLES, Run.owner == owner)
    doubled = select(Run).where(OF_SAMPLES, _OF_NOBODY, Run.title.in_(own))
    for run in session.scalars(doubled).all():
        run.title = f"{run.title[: MAX_NAME - SLUG_LENGTH - 1]} {run.slug}"
    session.flush()
    taken = update(Run).where(_OF_NOBODY).values(owner=owner).returning(Run.id)
    count = len(session.scalars(taken).all())
    if count:
        audit.record(session, actor, "took over", owner)
    return count
