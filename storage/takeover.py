"""Runs and studies that nobody owns, once there are logins. Takes a Session, never commits."""

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from ckv_core.studies.records import MAX_NAME
from storage import audit
from storage.models import ALIVE, SLUG_LENGTH, Run
from storage.study_models import StudyRow


def count_of_nobody(session: Session) -> int:
    """How many runs and studies have no owner, those that are deleted included."""
    runs = session.scalar(select(func.count()).where(Run.owner.is_(None))) or 0
    studies = select(func.count()).where(StudyRow.owner == "", StudyRow.deleted_at.is_(None))
    return runs + (session.scalar(studies) or 0)


def are_runs_of_nobody(session: Session) -> bool:
    """Whether a run that is not deleted has no owner."""
    found = select(Run.id).where(Run.owner.is_(None), ALIVE).limit(1)
    return session.scalar(found) is not None


def take_over(session: Session, owner: str, actor: str | None) -> tuple[int, int]:
    """Give every run and study without an owner to a user; how many runs and studies it were.

    A study of a name that the user has already is called by its name and its slug from then on.
    """
    runs = session.scalars(
        update(Run).where(Run.owner.is_(None)).values(owner=owner).returning(Run.id)
    ).all()
    own = set(session.scalars(select(StudyRow.name).where(StudyRow.owner == owner)))
    studies = session.execute(
        select(StudyRow.id, StudyRow.slug, StudyRow.name).where(
            StudyRow.owner == "", StudyRow.deleted_at.is_(None)
        )
    ).all()
    for study in studies:
        if study.name in own:
            row = session.get_one(StudyRow, study.id)
            row.name = f"{study.name[: MAX_NAME - SLUG_LENGTH - 1]} {study.slug}"
            row.definition = {**row.definition, "name": row.name}
            session.flush()
        session.execute(update(StudyRow).where(StudyRow.id == study.id).values(owner=owner))
    if runs or studies:
        audit.record(session, actor, "took over", owner)
    return len(runs), len(studies)
