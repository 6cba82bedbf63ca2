"""Queries on studies. Take a Session, return records, never commit."""

import hashlib
import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, cast

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ckv_core.errors import ConfigError, StorageError
from ckv_core.studies.records import Key, Sample, SampleResult, Study
from ckv_core.studies.spec import read_values, study_values
from storage.models import SLUG_LENGTH
from storage.records import record_of
from storage.repository import SLUG_ALPHABET
from storage.study_models import StudyResult, StudyRow, StudySample
from storage.study_records import StoredStudy

# What decides the outcome of a sample; other settings may change, and what stands is reused.
_FIXED = ("model", "scenario", "max_new_tokens", "metric")
_ROWS_AT_ONCE = 200
_UPSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class StudyMissingError(StorageError):
    """No study has that name or slug (any more)."""


def missing_study(name: str) -> StudyMissingError:
    """What to raise where a study is not there, or not for whoever asks."""
    return StudyMissingError(f"There is no study {name!r}; it may have been deleted.")


def save_study(
    session: Session, study: Study, samples: Sequence[Sample], owner: str, now: datetime
) -> str:
    """Make a study, or lead the one of that name on; returns its slug.

    Variants, budgets, tolerance and further samples may change: what stands is reused.

    Raises:
        ConfigError: something changed that decided the results which stand.
    """
    insert = _UPSERTS[session.get_bind().dialect.name]
    values = {
        "slug": "".join(secrets.choice(SLUG_ALPHABET) for _ in range(SLUG_LENGTH)),
        "owner": owner,
        "name": study.name,
        "created_at": now,
        "definition": study_values(study),
        "reason": "",
    }
    session.execute(insert(StudyRow).values(values).on_conflict_do_nothing())
    of_name = select(StudyRow).where(StudyRow.owner == owner, StudyRow.name == study.name)
    row = session.scalars(of_name.with_for_update()).one()
    _check_same(read_values(row.definition), study)
    row.definition = study_values(study)
    _save_samples(session, row.id, study.name, samples)
    session.flush()
    return row.slug


def find_slug(session: Session, name: str, owner: str | None = None) -> str:
    """Slug of the study of that name; of anybody's for an owner of None.

    Raises:
        StudyMissingError: there is none.
        ConfigError: several users have one of that name.
    """
    statement = select(StudyRow.slug).where(StudyRow.name == name).order_by(StudyRow.owner)
    if owner is not None:
        statement = statement.where(StudyRow.owner == owner)
    slugs = session.scalars(statement).all()
    if not slugs:
        raise missing_study(name)
    if len(slugs) > 1:
        raise ConfigError(f"{len(slugs)} users have a study {name!r}; export it from its own page.")
    return slugs[0]


def list_studies(session: Session, owner: str | None = None) -> list[StoredStudy]:
    """All studies, or those of one owner; newest first."""
    statement = select(StudyRow).order_by(StudyRow.id.desc())
    if owner is not None:
        statement = statement.where(StudyRow.owner == owner)
    return [_record(session, row) for row in session.scalars(statement)]


def load_study(session: Session, slug: str) -> StoredStudy:
    """What was asked, and how far it is.

    Raises:
        StudyMissingError: there is none.
    """
    return _record(session, _row(session, slug))


def load_samples(session: Session, slug: str) -> list[Sample]:
    """All samples, in order.

    Raises:
        StudyMissingError: there is no such study.
    """
    study_id = _row(session, slug).id
    statement = select(StudySample).where(StudySample.study_id == study_id)
    rows = session.scalars(statement.order_by(StudySample.position))
    return [_sample(row) for row in rows]


def load_results(session: Session, slug: str) -> list[SampleResult]:
    """The results of the points that the study has now, in the order of samples and points.

    Raises:
        StudyMissingError: there is no such study.
    """
    row = _row(session, slug)
    points = read_values(row.definition).points()
    order = {(point.variant, point.budget or ""): at for at, point in enumerate(points)}
    statement = (
        select(StudyResult, StudySample.position)
        .join(
            StudySample,
            (StudySample.study_id == StudyResult.study_id)
            & (StudySample.sample == StudyResult.sample),
        )
        .where(StudyResult.study_id == row.id)
    )
    placed = [
        (position, order[result.variant, result.budget], result)
        for result, position in session.execute(statement)
        if (result.variant, result.budget) in order
    ]
    placed.sort(key=lambda at: at[:2])
    return [record_of(SampleResult, result, budget=result.budget or None) for *_, result in placed]


def standing(session: Session, slug: str) -> set[Key]:
    """Keys of what is done; what failed is not among them.

    Raises:
        StudyMissingError: there is no such study.
    """
    keys = (StudyResult.sample, StudyResult.variant, StudyResult.budget)
    statement = select(*keys).where(
        StudyResult.study_id == _row(session, slug).id, StudyResult.state == "done"
    )
    return {
        (sample, variant, budget or None) for sample, variant, budget in session.execute(statement)
    }


def save_results(
    session: Session, slug: str, results: Collection[SampleResult], now: datetime
) -> None:
    """Write results; one that is done already stays as it is, whoever was first.

    Raises:
        StudyMissingError: the study was deleted meanwhile.
    """
    if not results:
        return
    study_id = _row(session, slug).id
    insert = _UPSERTS[session.get_bind().dialect.name](StudyResult)
    more = {"study_id": study_id, "finished_at": now}
    rows = [asdict(each) | {"budget": each.budget or ""} | more for each in results]
    key = ("study_id", "sample", "variant", "budget")
    written = {name: insert.excluded[name] for name in rows[0] if name not in key}
    statement = insert.on_conflict_do_update(
        index_elements=key, set_=written, where=StudyResult.state != "done"
    )
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        session.execute(statement, rows[start : start + _ROWS_AT_ONCE])


def set_facts(session: Session, slug: str, model: dict[str, Any], env: dict[str, str]) -> None:
    """Note the model that served, and the versions.

    Raises:
        ConfigError: results stand that another model of that name gave.
    """
    row = _row(session, slug)
    if row.model is not None and row.model.get("sha256") != model.get("sha256"):
        raise ConfigError(
            f"The weights of {model.get('name')!r} are not those that study {row.name!r} was run "
            "with; give the study another name."
        )
    row.model, row.environment = model, cast("dict[str, Any]", env)


def set_wanted(session: Session, slug: str, *, wanted: bool, reason: str = "") -> None:
    """Whether the app is to run it, also after a restart."""
    session.execute(
        update(StudyRow).where(StudyRow.slug == slug).values(wanted=wanted, reason=reason)
    )


def wanted_studies(session: Session) -> dict[str, str]:
    """Slug -> owner of the studies that the app is to run, oldest first."""
    statement = select(StudyRow.slug, StudyRow.owner).where(StudyRow.wanted).order_by(StudyRow.id)
    return {row.slug: row.owner for row in session.execute(statement)}


def delete_study(session: Session, slug: str) -> bool:
    """Delete a study with its samples and results; False if there is none."""
    gone = delete(StudyRow).where(StudyRow.slug == slug).returning(StudyRow.id)
    return session.scalar(gone) is not None


# --- parts ------------------------------------------------------------------------------


def _row(session: Session, slug: str) -> StudyRow:
    row = session.scalar(select(StudyRow).where(StudyRow.slug == slug))
    if row is None:
        raise missing_study(slug)
    return row


def _check_same(old: Study, new: Study) -> None:
    for name in _FIXED:
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            raise ConfigError(
                f"Study {new.name!r} was run with {name} {before!r}, and the file says {now!r}; "
                "give the changed study another name."
            )


def _save_samples(session: Session, study_id: int, name: str, samples: Sequence[Sample]) -> None:
    """Add the samples that are not there yet.

    Raises:
        ConfigError: one that is there was changed or left out.
    """
    statement = select(StudySample.sample, StudySample.digest).where(
        StudySample.study_id == study_id
    )
    known = {row.sample: row.digest for row in session.execute(statement)}
    given = {sample.id: _digest(sample) for sample in samples}
    for sample, digest in known.items():
        if given.get(sample) != digest:
            raise ConfigError(
                f"Sample {sample!r} of study {name!r} was changed or removed since it was run; "
                "give the changed study another name."
            )
    added = [sample for sample in samples if sample.id not in known]
    session.add_all(
        StudySample(
            study_id=study_id,
            position=position,
            sample=sample.id,
            digest=given[sample.id],
            details=_details(sample),
            context=sample.context,
        )
        for position, sample in enumerate(added, start=len(known))
    )


def _details(sample: Sample) -> dict[str, Any]:
    values = asdict(sample)
    return {key: values[key] for key in values if key not in ("id", "context")}


def _digest(sample: Sample) -> str:
    text = json.dumps(asdict(sample), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _sample(row: StudySample) -> Sample:
    lists = {key: tuple(row.details[key]) for key in ("answers", "choices")}
    return Sample(id=row.sample, context=row.context, **{**row.details, **lists})


def _record(session: Session, row: StudyRow) -> StoredStudy:
    study = read_values(row.definition)
    samples = session.scalar(
        select(func.count()).select_from(StudySample).where(StudySample.study_id == row.id)
    )
    wanted = {(point.variant, point.budget or "") for point in study.points()}
    counted = session.execute(
        select(StudyResult.variant, StudyResult.budget, StudyResult.state, func.count())
        .where(StudyResult.study_id == row.id)
        .group_by(StudyResult.variant, StudyResult.budget, StudyResult.state)
    )
    counts = {"done": 0, "failed": 0}
    for variant, budget, state, count in counted:
        if (variant, budget) in wanted:
            counts[state] += count
    return record_of(
        StoredStudy, row, study=study, samples=samples or 0, points=len(wanted), **counts
    )
