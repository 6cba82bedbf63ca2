"""Runs of many samples: every method has committed when it returns; any thread may call.

Such a run is one of all runs: storage/library.py lists, annotates, deletes and purges it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Row, Select, case, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ckv_core.errors import ConfigError
from ckv_core.experiment.decide import random_order
from ckv_core.experiment.study import Key, Sample, SampleResult, Study
from ckv_core.experiment.study_file import read_values, study_values
from ckv_core.records.records import ModelInfo
from ckv_core.records.run_request import RunRequest
from storage import repository, search
from storage.database import Database, database_url, open_database
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckv_core.experiment.export import Exported

P = ParamSpec("P")
T = TypeVar("T")
# What decides the outcome of a sample; other settings may change, and the results stay.
_FIXED = ("model", "scenario", "max_new_tokens", "metric", "read_once")
_RESULTS_AT_ONCE = 500
_ROWS_AT_ONCE = 200
_DETAILS = ("metric", "source", "tags", "choices")
_HERE = (OF_SAMPLES, ALIVE)
_IS_ACTIVE = Run.state.in_(ACTIVE_STATES)
_UPSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


@contextmanager
def open_studies(url: str | None = None) -> "Iterator[Studies]":
    """The studies of the app's database, or of another.

    Raises:
        StorageError: it cannot be opened.
    """
    with closing(open_database(url or database_url())) as database:
        yield Studies(database)


def _reads(
    query: Callable[Concatenate["Studies", Session, P], T],
) -> Callable[Concatenate["Studies", P], T]:
    @wraps(query)
    def read(self: "Studies", /, *values: P.args, **named: P.kwargs) -> T:
        return self.database.read_with(lambda session: query(self, session, *values, **named))

    return read


def _writes(
    change: Callable[Concatenate["Studies", Session, P], T],
) -> Callable[Concatenate["Studies", P], T]:
    @wraps(change)
    def write(self: "Studies", /, *values: P.args, **named: P.kwargs) -> T:
        return self.database.write_with(lambda session: change(self, session, *values, **named))

    return write


class Studies:
    """All methods raise StorageError if the database fails.

    Those that take a slug raise RunMissingError where it has no run of many samples.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    # --- reading ------------------------------------------------------------------------

    @_reads
    def slug(self, session: Session, name: str) -> str:
        """Slug of the study of that name, of any owner.

        Raises:
            RunMissingError: there is none.
            ConfigError: several users have one of that name.
        """
        slugs = session.scalars(select(Run.slug).where(*_HERE, Run.title == name)).all()
        if not slugs:
            raise missing_run(name)
        if len(slugs) > 1:
            raise ConfigError(
                f"{len(slugs)} users have a study {name!r}; export it from its own page."
            )
        return slugs[0]

    @_reads
    def has(self, session: Session, name: str, owner: str | None) -> bool:
        """Whether that owner has a study of that name."""
        own = select(Run.id).where(*_HERE, Run.title == name, Run.owner == owner)
        return session.scalar(own) is not None

    @_reads
    def load(self, session: Session, slug: str) -> StoredStudy:
        """The definition of a study, and how far it is."""
        return _load(session, slug)

    @_reads
    def samples(self, session: Session, slug: str) -> list[Sample]:
        """All samples, in order."""
        (run_id,) = _columns(session, select(Run.id), slug)
        of_run = select(SampleRow).where(SampleRow.run_id == run_id)
        return [_sample(row) for row in session.scalars(of_run.order_by(SampleRow.position))]

    @_reads
    def requests(self, session: Session, runs: Sequence[str]) -> dict[str, RunRequest]:
        """The requests of these runs of one sample, by slug.

        Raises:
            RunMissingError: one of them is not there.
        """
        return {slug: repository.load_request(session, slug) for slug in runs}

    @_reads
    def results(self, session: Session, slug: str) -> list[SampleResult]:
        """Results of the points that the study has now, in the order of samples and points."""
        with explained(slug):
            run_id, request, title = _columns(session, select(Run.id, Run.request, Run.title), slug)
            points = study_of(request, title).points()
        order = {(point.variant, point.budget or ""): at for at, point in enumerate(points)}
        samples = select(SampleRow.sample, SampleRow.position).where(SampleRow.run_id == run_id)
        places = {row.sample: row.position for row in session.execute(samples)}
        columns = (getattr(ResultRow, each.name) for each in fields(SampleResult))
        rows = session.execute(select(*columns).where(ResultRow.run_id == run_id))
        wanted = [row for row in rows if (row.variant, row.budget) in order]
        wanted.sort(key=lambda row: (places[row.sample], order[row.variant, row.budget]))
        return [SampleResult(**{**row._mapping, "budget": row.budget or None}) for row in wanted]

    @_reads
    def standing(self, session: Session, slug: str) -> set[Key]:
        """Keys of what is done and of what fails each time; other failures are not among them."""
        (run_id,) = _columns(session, select(Run.id), slug)
        is_final = (ResultRow.state == "done") | ResultRow.for_good
        keys = select(ResultRow.sample, ResultRow.variant, ResultRow.budget)
        rows = session.execute(keys.where(ResultRow.run_id == run_id, is_final))
        return {(sample, variant, budget or None) for sample, variant, budget in rows}

    @_reads
    def wanted(self, session: Session) -> dict[str, str | None]:
        """Slug -> owner of the studies that the app is to run, oldest first."""
        statement = select(Run.slug, Run.owner).where(*_HERE, _IS_ACTIVE).order_by(Run.id)
        return {row.slug: row.owner for row in session.execute(statement)}

    # --- writing ------------------------------------------------------------------------

    @_writes
    def save(
        self, session: Session, study: Study, samples: Sequence[Sample], owner: str | None = None
    ) -> str:
        """Make a study, or extend the one of that name; returns its slug.

        Variants, budgets, tolerance and further samples may change, and the results stay. Samples
        that are new come in a random order behind those that are there: the first of them count
        while others are still to be run.

        Raises:
            ConfigError: something changed that decided the results which are there.
        """
        order = random_order([sample.source or sample.context for sample in samples])
        return _save(session, study, [samples[at] for at in order], owner)

    def add(self, exported: "Exported", owner: str | None = None) -> str:
        """Store a study of a file, or its results to the one of that name; returns its slug.

        Raises:
            ConfigError: the study of that name has other samples, another setting or model.
        """
        with self.database.write() as session:
            slug = _save(session, exported.study, exported.samples, owner)
            if exported.model is not None:
                _set_facts(session, slug, exported.model, exported.environment or {})
        for at in range(0, len(exported.results), _RESULTS_AT_ONCE):  # others wait meanwhile
            with self.database.write_in_turn() as session:
                _save_results(session, slug, exported.results[at : at + _RESULTS_AT_ONCE])
        self.rest(slug)
        return slug

    @_writes
    def commit(self, session: Session, slug: str, results: Collection[SampleResult]) -> None:
        """Store the results of one sample, all or none; what is done already stays as it is."""
        _save_results(session, slug, results)

    @_writes
    def served_by(
        self, session: Session, slug: str, model: ModelInfo, environment: "Mapping[str, str]"
    ) -> None:
        """Note the model that serves it, and the versions.

        Raises:
            ConfigError: another model of that name gave the results which are there.
        """
        _set_facts(session, slug, model, environment)

    @_writes
    def want(self, session: Session, slug: str) -> None:
        """Have the app run it, also after a restart."""
        rested = (Run.slug == slug, *_HERE, ~_IS_ACTIVE)
        values = {"state": "queued", "reason": "", "finished_at": None}
        session.execute(update(Run).where(*rested).values(values))

    @_writes
    def rest(self, session: Session, slug: str, reason: str = "") -> bool:
        """Have the app run it no more: it is whole, or was stopped for this reason.

        False if there is no such run of many samples.
        """
        return _rest(session, slug, reason)

    @_writes
    def claim(self, session: Session, slug: str) -> bool:
        """Have this server run a wanted study; False where another server that lives does.

        On SQLite, which has one server, none is noted.
        """
        server = self.database.server
        active = select(Run.id, Run.server).where(Run.slug == slug, *_HERE, _IS_ACTIVE)
        row = session.execute(active.with_for_update()).one_or_none()
        if row is None:
            return False
        if row.server not in (None, server) and not is_gone(session, row.server):
            return False
        started = func.coalesce(Run.started_at, _now())
        values = {"server": server, "state": "running", "started_at": started}
        session.execute(update(Run).where(Run.id == row.id).values(values))
        return True

    @_writes
    def release(self, session: Session, slug: str) -> None:
        """Let another server run what this one no longer runs."""
        state = case((Run.state == "running", "queued"), else_=Run.state)
        own = (Run.slug == slug, OF_SAMPLES, Run.server == self.database.server)
        session.execute(update(Run).where(*own).values(server=None, state=state))


# --- parts, which take a Session and never commit ---------------------------------------


def study_of(definition: JsonObject, title: str) -> Study:
    """The study of a run's row; its title is the study's name."""
    return read_values({"name": title, **definition})


def _definition(study: Study) -> JsonObject:
    return {key: value for key, value in study_values(study).items() if key != "name"}


def count_results(session: Session, run_id: int, study: Study) -> ResultCounts:
    """Samples and points of a run, and how many results of the points there are."""
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


def _load(session: Session, slug: str) -> StoredStudy:
    with explained(slug):
        (row,) = _columns(session, select(Run), slug)
        study = study_of(row.request, row.title)
        counts = count_results(session, row.id, study)
        return record_of(StoredStudy, row, study=study, counts=counts)


def _save(session: Session, study: Study, samples: Sequence[Sample], owner: str | None) -> str:
    insert = _UPSERTS[session.get_bind().dialect.name]
    values = {
        "slug": new_slug(),
        "owner": owner,
        "kind": SAMPLES,
        "title": study.name,
        "state": "unfinished",
        "reason": "",
        "created_at": _now(),
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
    for name in _FIXED:
        before, now = getattr(old, name), getattr(study, name)
        if before != now:
            raise ConfigError(
                f"Study {study.name!r} was run with {name} {before!r}, and the file has {now!r}; "
                "give the changed study another name."
            )
    of_run = select(ResultRow.id).where(ResultRow.run_id == row.id).limit(1)
    has_results = session.scalar(of_run) is not None
    with counted(session, row.id, SampleRow, SampleRow.run_id == row.id):
        _save_samples(session, row.id, study, samples)
    with counted(session, row.id, Run, Run.id == row.id):
        row.request = _definition(study.after(old) if has_results else study)
    if row.state not in ACTIVE_STATES:
        _rest(session, row.slug, row.reason)
    return row.slug


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
            question=sample.question,
            answers=list(sample.answers),
            context=sample.context,
            details={name: getattr(sample, name) for name in _DETAILS},
        )
        for position, sample in enumerate(added, start=len(known))
    )


def _sample(row: SampleRow) -> Sample:
    details = {**row.details, "answers": tuple(row.answers), "id": row.sample}
    details["choices"] = tuple(details["choices"])
    return Sample(context=row.context, question=row.question, **details)


def _digest(sample: Sample) -> str:
    text = json.dumps(asdict(sample), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _save_results(session: Session, slug: str, results: Collection[SampleResult]) -> None:
    """Write results; one that is done already stays as it is."""
    if not results:
        return
    (run_id,) = _columns(session, select(Run.id), slug)
    insert = _UPSERTS[session.get_bind().dialect.name](ResultRow)
    now = _now()
    rows = [
        asdict(each)
        | {"budget": each.budget or "", "method": re.split("[:+]", each.variant)[0].strip()}
        | {"run_id": run_id, "finished_at": now}
        for each in results
    ]
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


def _set_facts(
    session: Session, slug: str, model: ModelInfo, environment: "Mapping[str, str]"
) -> None:
    run_id, title, old = _columns(session, select(Run.id, Run.title, Run.model), slug)
    if old is not None and old.get("sha256") != model.sha256:
        raise ConfigError(
            f"The weights of {model.name!r} are not those that study {title!r} was run with; give "
            "the study another name."
        )
    facts = {"model": asdict(model), "environment": dict(environment)}
    with counted(session, run_id, Run, Run.id == run_id):
        session.execute(update(Run).where(Run.id == run_id).values(facts))


def _rest(session: Session, slug: str, reason: str) -> bool:
    try:
        whole = _load(session, slug).counts.is_whole
    except SPOILT:
        whole = False
    ended = {"state": "done" if whole else "unfinished", "reason": reason, "finished_at": _now()}
    own = update(Run).where(Run.slug == slug, *_HERE).values(ended)
    return session.scalar(own.returning(Run.id)) is not None


def _now() -> datetime:
    return datetime.now(UTC)
