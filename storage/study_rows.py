"""Queries on studies. Take a Session, return records, never commit."""

import hashlib
import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any, cast

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ckv_core.errors import CkvError, ConfigError, StorageError
from ckv_core.studies.records import Key, Sample, SampleResult, Study
from ckv_core.studies.spec import read_values, study_values
from storage.models import SLUG_LENGTH
from storage.records import SPOILT, record_of
from storage.repository import SLUG_ALPHABET
from storage.servers import is_gone
from storage.study_models import StudyResult, StudyRow, StudySample
from storage.study_records import StoredStudy
from storage.usage import count_study, counted

# What decides the outcome of a sample; other settings may change, and what stands is reused.
_FIXED = ("model", "scenario", "max_new_tokens", "metric", "read_once")
_ROWS_AT_ONCE = 200
_REMOVED_AT_ONCE = 1000  # results; samples have long texts
_SAMPLES_REMOVED_AT_ONCE = 50
# Of studies that are not being removed.
_ALIVE = StudyRow.deleted_at.is_(None)
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
    made = insert(StudyRow).values(values).on_conflict_do_nothing().returning(StudyRow.id)
    if (study_id := session.scalar(made)) is not None:
        count_study(session, study_id)
    of_name = select(StudyRow).where(StudyRow.owner == owner, StudyRow.name == study.name)
    row = session.scalars(of_name.with_for_update()).one()
    old = read_values(row.definition)
    _check_same(old, study)
    of_study = select(StudyResult.id).where(StudyResult.study_id == row.id).limit(1)
    has_results = session.scalar(of_study) is not None
    with counted(session, row.id, StudySample, StudySample.study_id == row.id):
        _save_samples(session, row.id, study, samples)
    with counted(session, row.id, StudyRow, StudyRow.id == row.id):
        row.definition = study_values(study.after(old) if has_results else study)
    return row.slug


def find_slug(session: Session, name: str, owner: str | None = None) -> str:
    """Slug of the study of that name; of anybody's for an owner of None.

    Raises:
        StudyMissingError: there is none.
        ConfigError: several users have one of that name.
    """
    statement = select(StudyRow.slug).where(StudyRow.name == name, _ALIVE).order_by(StudyRow.owner)
    if owner is not None:
        statement = statement.where(StudyRow.owner == owner)
    slugs = session.scalars(statement).all()
    if not slugs:
        raise missing_study(name)
    if len(slugs) > 1:
        raise ConfigError(f"{len(slugs)} users have a study {name!r}; export it from its own page.")
    return slugs[0]


def list_studies(
    session: Session, owner: str | None = None, most: int | None = None
) -> list[StoredStudy]:
    """All studies, or those of one owner, newest first; of a bounded list the wanted ones first."""
    order = [StudyRow.id.desc()] if most is None else [StudyRow.wanted.desc(), StudyRow.id.desc()]
    statement = select(StudyRow.id).where(_ALIVE).order_by(*order).limit(most)
    if owner is not None:
        statement = statement.where(StudyRow.owner == owner)
    return [_listed(session, key) for key in session.scalars(statement).all()]


def _listed(session: Session, key: int) -> StoredStudy:
    """One study of a list; of one that cannot be read what can, with the reason."""
    try:
        with _explained():
            return _record(session, session.get_one(StudyRow, key))
    except StorageError as error:
        problem = str(error)
    kept = (StudyRow.slug, StudyRow.owner, StudyRow.name, StudyRow.created_at)
    more = (StudyRow.wanted, StudyRow.server, StudyRow.reason)
    row = session.execute(select(*kept, *more).where(StudyRow.id == key)).one()
    return StoredStudy(
        slug=row.slug,
        owner=row.owner,
        study=Study(name=row.name, data={}, model="-"),
        created_at=row.created_at,
        model=None,
        environment=None,
        wanted=row.wanted,
        server=row.server,
        reason=row.reason,
        samples=0,
        points=0,
        done=0,
        failed=0,
        problem=problem,
    )


def study_owner(session: Session, slug: str) -> str:
    """Whose a study is, also of one that cannot be read.

    Raises:
        StudyMissingError: there is none.
    """
    owner = session.scalar(select(StudyRow.owner).where(StudyRow.slug == slug, _ALIVE))
    if owner is None:
        raise missing_study(slug)
    return owner


def load_study(session: Session, slug: str) -> StoredStudy:
    """What was asked, and how far it is.

    Raises:
        StudyMissingError: there is none.
        StorageError: this version cannot read it.
    """
    with _explained():
        return _record(session, _row(session, slug))


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what spoilt values of a row raise into a sentence."""
    try:
        yield
    except StudyMissingError:
        raise
    except SPOILT as error:
        why = str(error) if isinstance(error, CkvError) else f"{type(error).__name__}: {error}"
        raise StorageError(f"This version cannot read the study: {why[:300]}") from error


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
    with _explained():
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
    return [record_of(SampleResult, r, budget=r.budget or None) for *_, r in placed]


def standing(session: Session, slug: str) -> set[Key]:
    """Keys of what is done and of what fails each time; other failures are not among them.

    Raises:
        StudyMissingError: there is no such study.
    """
    keys = (StudyResult.sample, StudyResult.variant, StudyResult.budget)
    statement = select(*keys).where(
        StudyResult.study_id == _row(session, slug).id,
        (StudyResult.state == "done") | StudyResult.for_good,
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
    of_samples = (
        StudyResult.study_id == study_id,
        StudyResult.sample.in_({each.sample for each in results}),
    )
    with counted(session, study_id, StudyResult, *of_samples):
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
    with counted(session, row.id, StudyRow, StudyRow.id == row.id):
        row.model, row.environment = model, cast("dict[str, Any]", env)


def set_wanted(session: Session, slug: str, *, wanted: bool, reason: str = "") -> None:
    """Whether the app is to run it, also after a restart."""
    of_study = (StudyRow.slug == slug, _ALIVE)
    session.execute(update(StudyRow).where(*of_study).values(wanted=wanted, reason=reason))


def claim(session: Session, slug: str, server: int | None) -> bool:
    """Have a server run a wanted study; False where another one that lives does.

    On SQLite, which has one server, nothing is noted.
    """
    row = session.scalar(select(StudyRow).where(StudyRow.slug == slug).with_for_update())
    if row is None or not row.wanted:
        return False
    if row.server is not None and row.server != server and not is_gone(session, row.server):
        return False
    row.server = server
    return True


def release(session: Session, slug: str, server: int | None) -> None:
    """Let another server run a study that this one no longer runs."""
    of_server = (StudyRow.slug == slug, StudyRow.server == server)
    session.execute(update(StudyRow).where(*of_server).values(server=None))


def wanted_studies(session: Session) -> dict[str, str]:
    """Slug -> owner of the studies that the app is to run, oldest first."""
    statement = select(StudyRow.slug, StudyRow.owner).where(StudyRow.wanted).order_by(StudyRow.id)
    return {row.slug: row.owner for row in session.execute(statement)}


def delete_study(session: Session, slug: str, now: datetime) -> bool:
    """Have nobody see a study any more, for `purge_deleted` to remove; False if there is none."""
    gone = update(StudyRow).where(StudyRow.slug == slug, _ALIVE).returning(StudyRow.id)
    # Its name is free at once.
    values = {"deleted_at": now, "name": slug, "wanted": False}
    return session.scalar(gone.values(values)) is not None


def purge_deleted(session: Session) -> bool:
    """Remove some rows of a deleted study, in a moment; False if there are none.

    Thousands of results and long texts take seconds: the caller repeats it until it is False.
    """
    deleted = select(StudyRow.id).where(StudyRow.deleted_at.is_not(None)).limit(1)
    study_id = session.scalar(deleted.with_for_update(skip_locked=True))  # another server's purge
    if study_id is None:
        return False
    for key, of_study, most in (
        (StudyResult.id, StudyResult.study_id == study_id, _REMOVED_AT_ONCE),
        (StudySample.position, StudySample.study_id == study_id, _SAMPLES_REMOVED_AT_ONCE),
    ):
        keys = session.scalars(select(key).where(of_study).limit(most)).all()
        if keys:
            session.execute(delete(key.class_).where(of_study, key.in_(keys)))
            return True
    session.execute(delete(StudyRow).where(StudyRow.id == study_id))
    return True


# --- parts ------------------------------------------------------------------------------


def _row(session: Session, slug: str) -> StudyRow:
    row = session.scalar(select(StudyRow).where(StudyRow.slug == slug, _ALIVE))
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


def _save_samples(session: Session, study_id: int, study: Study, samples: Sequence[Sample]) -> None:
    """Add the samples that are not there yet.

    Raises:
        ConfigError: one that is there was changed or left out, or the study's size is fixed.
    """
    statement = select(StudySample.sample, StudySample.digest).where(
        StudySample.study_id == study_id
    )
    known = {row.sample: row.digest for row in session.execute(statement)}
    given = {sample.id: _digest(sample) for sample in samples}
    for sample, digest in known.items():
        if given.get(sample) != digest:
            raise ConfigError(
                f"Sample {sample!r} of study {study.name!r} was changed or removed since it was "
                "run; give the changed study another name."
            )
    added = [sample for sample in samples if sample.id not in known]
    if known and added and study.read_once:
        raise ConfigError(
            f"Study {study.name!r} is read once, so its {len(known):,} samples are fixed; give the "
            "larger study another name."
        )
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
    by = (StudyResult.variant, StudyResult.budget, StudyResult.state, StudyResult.for_good)
    counted = session.execute(
        select(*by, func.count()).where(StudyResult.study_id == row.id).group_by(*by)
    )
    counts = {"done": 0, "failed": 0, "failed_for_good": 0}
    for variant, budget, state, for_good, count in counted:
        if (variant, budget) in wanted:
            counts[state] += count
            counts["failed_for_good"] += count if for_good else 0
    return record_of(
        StoredStudy,
        row,
        study=study,
        samples=samples or 0,
        points=len(wanted),
        problem="",
        **counts,
    )
