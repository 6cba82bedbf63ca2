"""Queries on runs of many samples. Take a Session, return records, never commit.

Such a run is one of all runs: storage/library.py lists, annotates, deletes and purges it.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, case, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ckv_core.errors import ConfigError
from ckv_core.studies.records import Key, Sample, SampleResult, Study
from ckv_core.studies.spec import read_values, study_values
from storage import search
from storage.models import (
    ACTIVE_STATES,
    ALIVE,
    OF_SAMPLES,
    SAMPLES,
    JsonObject,
    ResultRow,
    Run,
    SampleRow,
)
from storage.records import SPOILT, ResultCounts, StoredStudy, record_of
from storage.repository import Columns, explained, missing_run, new_slug
from storage.servers import is_gone
from storage.usage import count_run, counted

# What decides the outcome of a sample; other settings may change, and what stands is reused.
_FIXED = ("model", "scenario", "max_new_tokens", "metric", "read_once")
_ROWS_AT_ONCE = 200
_HERE = (OF_SAMPLES, ALIVE)
_IS_ACTIVE = Run.state.in_(ACTIVE_STATES)
_UPSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def save_study(
    session: Session, study: Study, samples: Sequence[Sample], owner: str | None, now: datetime
) -> str:
    """Make a run of many samples, or extend the one of that name; returns its slug.

    Variants, budgets, tolerance and further samples may change: what stands is reused.

    Raises:
        ConfigError: something changed that decided the results which stand.
    """
    insert = _UPSERTS[session.get_bind().dialect.name]
    values = {
        "slug": new_slug(),
        "owner": owner,
        "kind": SAMPLES,
        "title": study.name,
        "state": "unfinished",
        "reason": "",
        "created_at": now,
        "scenario": study.scenario,
        "model_name": study.model,
        "complete": False,
        "request": _definition(study),
        "environment": {},
        "timings_ms": {},
    }
    made = insert(Run).values(values).on_conflict_do_nothing().returning(Run.id)
    if (run_id := session.scalar(made)) is not None:
        count_run(session, run_id)
        search.index_run(session, run_id)
    of_name = select(Run).where(*_HERE, Run.owner == owner, Run.title == study.name)
    row = session.scalars(of_name.with_for_update()).one()
    old = study_of(row.request, row.title)
    _check_same(old, study)
    of_run = select(ResultRow.id).where(ResultRow.run_id == row.id).limit(1)
    has_results = session.scalar(of_run) is not None
    with counted(session, row.id, SampleRow, SampleRow.run_id == row.id):
        _save_samples(session, row.id, study, samples)
    with counted(session, row.id, Run, Run.id == row.id):
        row.request = _definition(study.after(old) if has_results else study)
    if row.state not in ACTIVE_STATES:
        rest(session, row.slug, row.reason, now)
    return row.slug


def find_slug(session: Session, name: str, owner: str | None, *, of_anybody: bool = False) -> str:
    """Slug of the run of many samples of that name.

    Raises:
        RunMissingError: there is none.
        ConfigError: several users have one of that name.
    """
    statement = select(Run.slug).where(*_HERE, Run.title == name)
    if not of_anybody:
        statement = statement.where(Run.owner == owner)
    slugs = session.scalars(statement).all()
    if not slugs:
        raise missing_run(name)
    if len(slugs) > 1:
        raise ConfigError(f"{len(slugs)} users have a study {name!r}; export it from its own page.")
    return slugs[0]


def load_study(session: Session, slug: str) -> StoredStudy:
    """The study of a run of many samples, and how far it is.

    Raises:
        RunMissingError: there is none.
        StorageError: this version cannot read it.
    """
    with explained(slug):
        row = session.scalar(select(Run).where(Run.slug == slug, *_HERE))
        if row is None:
            raise missing_run(slug)
        study = study_of(row.request, row.title)
        counts = count_results(session, row.id, study)
        return record_of(StoredStudy, row, study=study, counts=counts)


def load_samples(session: Session, slug: str) -> list[Sample]:
    """All samples, in order.

    Raises:
        RunMissingError: there is no such run of many samples.
    """
    (run_id,) = _columns(session, select(Run.id), slug)
    statement = select(SampleRow).where(SampleRow.run_id == run_id)
    rows = session.scalars(statement.order_by(SampleRow.position))
    return [_sample(row) for row in rows]


def load_results(session: Session, slug: str) -> list[SampleResult]:
    """The results of the points that the study has now, in the order of samples and points.

    Raises:
        RunMissingError: there is no such run of many samples.
    """
    with explained(slug):
        run_id, request, title = _columns(session, select(Run.id, Run.request, Run.title), slug)
        points = study_of(request, title).points()
    order = {(point.variant, point.budget or ""): at for at, point in enumerate(points)}
    statement = (
        select(ResultRow, SampleRow.position)
        .join(
            SampleRow,
            (SampleRow.run_id == ResultRow.run_id) & (SampleRow.sample == ResultRow.sample),
        )
        .where(ResultRow.run_id == run_id)
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
        RunMissingError: there is no such run of many samples.
    """
    (run_id,) = _columns(session, select(Run.id), slug)
    keys = (ResultRow.sample, ResultRow.variant, ResultRow.budget)
    statement = select(*keys).where(
        ResultRow.run_id == run_id, (ResultRow.state == "done") | ResultRow.for_good
    )
    return {
        (sample, variant, budget or None) for sample, variant, budget in session.execute(statement)
    }


def save_results(
    session: Session, slug: str, results: Collection[SampleResult], now: datetime
) -> None:
    """Write results; one that is done already stays as it is, whoever was first.

    Raises:
        RunMissingError: the run was deleted meanwhile.
    """
    if not results:
        return
    (run_id,) = _columns(session, select(Run.id), slug)
    insert = _UPSERTS[session.get_bind().dialect.name](ResultRow)
    more = {"run_id": run_id, "finished_at": now}
    rows = [asdict(each) | {"budget": each.budget or ""} | more for each in results]
    key = ("run_id", "sample", "variant", "budget")
    written = {name: insert.excluded[name] for name in rows[0] if name not in key}
    statement = insert.on_conflict_do_update(
        index_elements=key, set_=written, where=ResultRow.state != "done"
    )
    of_samples = (
        ResultRow.run_id == run_id,
        ResultRow.sample.in_({each.sample for each in results}),
    )
    with counted(session, run_id, ResultRow, *of_samples):
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            session.execute(statement, rows[start : start + _ROWS_AT_ONCE])


def set_facts(session: Session, slug: str, model: dict[str, Any], env: dict[str, str]) -> None:
    """Note the model that served, and the versions.

    Raises:
        ConfigError: results stand that another model of that name gave.
    """
    run_id, title, old = _columns(session, select(Run.id, Run.title, Run.model), slug)
    if old is not None and old.get("sha256") != model.get("sha256"):
        raise ConfigError(
            f"The weights of {model.get('name')!r} are not those that study {title!r} was run "
            "with; give the study another name."
        )
    with counted(session, run_id, Run, Run.id == run_id):
        session.execute(update(Run).where(Run.id == run_id).values(model=model, environment=env))


# --- who runs it ------------------------------------------------------------------------


def want(session: Session, slug: str) -> None:
    """Have the app run it, also after a restart."""
    rested = (Run.slug == slug, *_HERE, ~_IS_ACTIVE)
    values = {"state": "queued", "reason": "", "finished_at": None}
    session.execute(update(Run).where(*rested).values(values))


def rest(session: Session, slug: str, reason: str, now: datetime) -> bool:
    """Have the app run it no more: it is whole, or ends early; False for no run of many samples."""
    own = (Run.slug == slug, *_HERE)
    try:
        whole = load_study(session, slug).counts.is_whole
    except SPOILT:
        whole = False
    state = "done" if whole else "unfinished"
    ended = update(Run).where(*own).values(state=state, reason=reason, finished_at=now)
    return session.scalar(ended.returning(Run.id)) is not None


def claim(session: Session, slug: str, server: int | None, now: datetime) -> bool:
    """Have a server run a wanted study; False where another one that lives does.

    On SQLite, which has one server, none is noted.
    """
    active = select(Run.id, Run.server).where(Run.slug == slug, *_HERE, _IS_ACTIVE)
    row = session.execute(active.with_for_update()).one_or_none()
    if row is None:
        return False
    if row.server is not None and row.server != server and not is_gone(session, row.server):
        return False
    started = func.coalesce(Run.started_at, now)
    values = {"server": server, "state": "running", "started_at": started}
    session.execute(update(Run).where(Run.id == row.id).values(values))
    return True


def release(session: Session, slug: str, server: int | None) -> None:
    """Let another server run a study that this one no longer runs."""
    state = case((Run.state == "running", "queued"), else_=Run.state)
    own = (Run.slug == slug, OF_SAMPLES, Run.server == server)
    session.execute(update(Run).where(*own).values(server=None, state=state))


def wanted(session: Session) -> dict[str, str | None]:
    """Slug -> owner of the runs of many samples that the app is to run, oldest first."""
    statement = select(Run.slug, Run.owner).where(*_HERE, _IS_ACTIVE).order_by(Run.id)
    return {row.slug: row.owner for row in session.execute(statement)}


# --- parts ------------------------------------------------------------------------------


def study_of(definition: JsonObject, title: str) -> Study:
    """The study of a run's row; its title is the study's name."""
    return read_values({"name": title, **definition})


def _definition(study: Study) -> JsonObject:
    return {key: value for key, value in study_values(study).items() if key != "name"}


def count_results(session: Session, run_id: int, study: Study) -> ResultCounts:
    """Samples and points of a run, and of the latter's results how many there are."""
    samples = session.scalar(select(func.count()).where(SampleRow.run_id == run_id))
    points = {(point.variant, point.budget or "") for point in study.points()}
    by = (ResultRow.variant, ResultRow.budget, ResultRow.state, ResultRow.for_good)
    found = select(*by, func.count()).where(ResultRow.run_id == run_id).group_by(*by)
    counts = {"done": 0, "failed": 0, "failed_for_good": 0}
    for variant, budget, state, for_good, count in session.execute(found):
        if (variant, budget) in points:
            counts[state] += count
            counts["failed_for_good"] += count if for_good else 0
    return ResultCounts(samples=samples or 0, points=len(points), **counts)


def _columns(session: Session, selected: Select[*Columns], slug: str) -> Row[*Columns]:
    row = session.execute(selected.where(Run.slug == slug, *_HERE)).one_or_none()
    if row is None:
        raise missing_run(slug)
    return row


def _check_same(old: Study, new: Study) -> None:
    for name in _FIXED:
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            raise ConfigError(
                f"Study {new.name!r} was run with {name} {before!r}, and the file says {now!r}; "
                "give the changed study another name."
            )


def _save_samples(session: Session, run_id: int, study: Study, samples: Sequence[Sample]) -> None:
    """Add the samples that are not there yet.

    Raises:
        ConfigError: one that is there was changed or left out, or the study's size is fixed.
    """
    statement = select(SampleRow.sample, SampleRow.digest).where(SampleRow.run_id == run_id)
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
        SampleRow(
            run_id=run_id,
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


def _sample(row: SampleRow) -> Sample:
    lists = {key: tuple(row.details[key]) for key in ("answers", "choices")}
    return Sample(id=row.sample, context=row.context, **{**row.details, **lists})
