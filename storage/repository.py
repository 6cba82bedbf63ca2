"""Queries that read runs of one sample or many. Take a Session, return records, never commit.

Those that take a slug raise RunMissingError where no run of it is there any more.
"""

import re
import secrets
import string
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from typing import Any, TypeVarTuple, cast

from sqlalchemy import ColumnElement, Row, Select, func, select
from sqlalchemy.orm import Session

from ckv_core.base.checked import measured
from ckv_core.errors import CkvError, ConfigError, StorageError
from ckv_core.experiment.study import Key, Sample, SampleResult
from ckv_core.experiment.study_file import read_values
from ckv_core.records.codec import revived
from ckv_core.records.events import RunResult
from ckv_core.records.records import ModelInfo, PromptInfo, RetainedSet, RoundingFloor
from ckv_core.records.run_request import Kind, RunRequest
from storage import rows
from storage.models import (
    ACTIVE_STATES,
    ALIVE,
    OF_SAMPLES,
    SAMPLES,
    SLUG_LENGTH,
    Array,
    JsonObject,
    ResultRow,
    Run,
    SampleRow,
)
from storage.records import (
    SPOILT,
    ResultCounts,
    RunNotes,
    RunState,
    StoredRun,
    record_of,
)

SLUG_ALPHABET = string.ascii_lowercase + string.digits
_SLUG = re.compile(r"[a-z0-9]{6,32}", re.ASCII)
Columns = TypeVarTuple("Columns")

# Row, name, creation and end of a run: all that was recorded before its end.
RunKey = tuple[int, str, datetime, datetime | None]
Decoded = tuple[RunRequest, RunResult]
MOST_DECODED = 6


class RunMissingError(StorageError):
    """No run has that slug (any more)."""


def is_slug(text: object) -> bool:
    """Whether a client's text can name a run at all."""
    return isinstance(text, str) and _SLUG.fullmatch(text) is not None


def new_slug() -> str:
    """A random name for a link."""
    return "".join(secrets.choice(SLUG_ALPHABET) for _ in range(SLUG_LENGTH))


def missing_run(slug: str) -> RunMissingError:
    """The error for a run that does not exist, or that this user may not see."""
    return RunMissingError(f"There is no run {slug!r}; it may have been deleted.")


# --- reading ----------------------------------------------------------------------------


def load_run(session: Session, slug: str, kept: "DecodedRuns | None" = None) -> StoredRun:
    """A run of one sample with everything that was recorded of it; StorageError if it is spoilt.

    The result of a run that is over is looked for, and kept, in `kept`.
    """
    with explained(slug):
        run, sample = _one(session, select(Run, SampleRow), slug)

        def decode() -> Decoded:
            return rows.request_record(run.request, sample), _load_result(session, run, sample)

        key = (run.id, slug, run.created_at, run.finished_at)
        is_over = run.state not in ACTIVE_STATES
        request, result = kept.once(key, decode) if kept and is_over else decode()
        return record_of(StoredRun, run, request=request, result=result, counts=None)


@contextmanager
def explained(slug: str) -> Iterator[None]:
    """Turn what spoilt values of a run raise into a sentence that names it."""
    try:
        yield
    except RunMissingError:
        raise
    except SPOILT as error:
        why = str(error) if isinstance(error, CkvError) else f"{type(error).__name__}: {error}"
        raise StorageError(
            f"Run {slug} is spoilt and cannot be read ({why[:200]}); leave it out or delete it."
        ) from error


def load_request(session: Session, slug: str) -> RunRequest:
    """The request of a run of one sample, its texts too."""
    with explained(slug):
        return rows.request_record(*_one(session, select(Run.request, SampleRow), slug))


def load_requests(session: Session, slugs: Iterable[str]) -> dict[str, RunRequest]:
    """The requests of runs of one sample, by slug."""
    return {slug: load_request(session, slug) for slug in slugs}


def _one(session: Session, selected: Select[*Columns], slug: str) -> Row[*Columns]:
    """What is selected of a run of one sample and of that sample."""
    joined = selected.join(SampleRow, SampleRow.run_id == Run.id)
    return row_of(session, joined, slug, ~OF_SAMPLES)


def _load_result(session: Session, run: Run, sample: SampleRow) -> RunResult:
    of_run = select(ResultRow).where(ResultRow.run_id == run.id)
    variants = session.scalars(of_run.order_by(ResultRow.position)).all()
    arrays = _load_arrays(session, [variant.id for variant in variants])
    return RunResult(
        model=None if run.model is None else revived(ModelInfo, run.model),
        prompt=revived(PromptInfo, rows.decode_json(sample.prompt)) if sample.prompt else None,
        variants=[rows.variant_record(row, arrays.get(row.id, {})) for row in variants],
        environment=run.environment,
        timings_ms=run.timings_ms,
        finished=run.complete,
        kind=cast("Kind", run.kind),
        memory=run.memory or {},
        floor=None if run.floor is None else revived(RoundingFloor, run.floor),
    )


def load_retained(session: Session, slug: str, index: int) -> RetainedSet | None:
    """The kept set of one variant alone; None for `full` and before selection.

    Raises:
        RunMissingError: there is no such variant either.
    """
    result_id = None
    if 0 <= index < 2**31:  # what a position's column holds
        result_id = session.scalar(
            select(ResultRow.id)
            .join(Run, Run.id == ResultRow.run_id)
            .where(Run.slug == slug, ALIVE, ~OF_SAMPLES, ResultRow.position == index)
        )
    if result_id is None:
        raise RunMissingError(f"There is no run {slug!r} with a variant {index}.")
    arrays = _load_arrays(session, [result_id], "retained").get(result_id, {})
    with explained(slug):
        return rows.decode_retained(arrays["retained"]) if arrays else None


def load_notes(session: Session, slug: str) -> RunNotes:
    """The note of a run."""
    (note,) = row_of(session, select(Run.note), slug)
    return RunNotes(note)


def run_owner(session: Session, slug: str) -> str | None:
    """Who made a run; None if it was made without logins."""
    (owner,) = row_of(session, select(Run.owner), slug)
    return owner


def end_of(session: Session, slug: str) -> tuple[RunState, str] | None:
    """State and reason of a run that is over, also if another server ended it; else None."""
    row = row_of(session, select(Run.state, Run.reason), slug)
    return None if row.state in ACTIVE_STATES else (cast("RunState", row.state), row.reason)


# --- runs of many samples -----------------------------------------------------------------


def study_of(definition: JsonObject, title: str) -> RunRequest:
    """The study of a run's row; its title is the study's name."""
    return read_values({"name": title, **definition})


def load_study(session: Session, slug: str) -> StoredRun:
    """The definition of a run of many samples, and how far it is."""
    with explained(slug):
        (row,) = row_of(session, select(Run), slug, OF_SAMPLES)
        study = study_of(row.request, row.title)
        counts = count_results(session, row.id, study)
        model = None if row.model is None else revived(ModelInfo, row.model)
        result = RunResult(model=model, environment=row.environment)
        return record_of(StoredRun, row, request=study, result=result, counts=counts)


def load_samples(session: Session, slug: str) -> list[Sample]:
    """All samples of a run of many, in order."""
    run_id = key_of(session, slug, OF_SAMPLES)
    of_run = select(SampleRow).where(SampleRow.run_id == run_id)
    found = session.scalars(of_run.order_by(SampleRow.position))
    return [rows.sample_record(row) for row in found]


def load_results(session: Session, slug: str) -> list[SampleResult]:
    """Results of the points that the study has now, in the order of samples and points."""
    with explained(slug):
        selected = select(Run.id, Run.request, Run.title)
        run_id, request, title = row_of(session, selected, slug, OF_SAMPLES)
        points = study_of(request, title).points()
    order = {(point.variant, point.budget or ""): at for at, point in enumerate(points)}
    samples = select(SampleRow.sample, SampleRow.position).where(SampleRow.run_id == run_id)
    places = {row.sample: row.position for row in session.execute(samples)}
    columns = (getattr(ResultRow, each.name) for each in fields(SampleResult))
    found = session.execute(select(*columns).where(ResultRow.run_id == run_id))
    wanted = [row for row in found if (row.variant, row.budget) in order]
    wanted.sort(key=lambda row: (places[row.sample], order[row.variant, row.budget]))
    return [_result(row) for row in wanted]


def _result(row: Row[*tuple[Any, ...]]) -> SampleResult:
    figures = {key: measured(value) for key, value in (row.figures or {}).items()}
    return SampleResult(**{**row._mapping, "budget": row.budget or None, "figures": figures})


def done_keys(session: Session, slug: str) -> set[Key]:
    """Keys of what is done and of what fails each time; other failures are not among them."""
    run_id = key_of(session, slug, OF_SAMPLES)
    is_final = (ResultRow.state == "done") | ResultRow.for_good
    keys = select(ResultRow.sample, ResultRow.variant, ResultRow.budget)
    found = session.execute(keys.where(ResultRow.run_id == run_id, is_final))
    return {(sample, variant, budget or None) for sample, variant, budget in found}


def count_results(session: Session, run_id: int, study: RunRequest) -> ResultCounts:
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


def wanted_studies(session: Session) -> dict[str, str | None]:
    """Slug -> owner of the runs of many samples that the app is to run, oldest first."""
    active = select(Run.slug, Run.owner).where(OF_SAMPLES, ALIVE, Run.state.in_(ACTIVE_STATES))
    return {row.slug: row.owner for row in session.execute(active.order_by(Run.id))}


def slugs_of_name(session: Session, name: str) -> dict[str | None, str]:
    """Owner -> slug of the runs of many samples of that name."""
    named = select(Run.owner, Run.slug).where(OF_SAMPLES, ALIVE, Run.title == name)
    return {row.owner: row.slug for row in session.execute(named)}


def slug_of_name(session: Session, name: str) -> str:
    """The run of many samples of that name, of any owner; ConfigError for several."""
    slugs = [*slugs_of_name(session, name).values()]
    if not slugs:
        raise missing_run(name)
    if len(slugs) > 1:
        raise ConfigError(f"{len(slugs)} users have a study {name!r}; export it from its own page.")
    return slugs[0]


# --- parts ------------------------------------------------------------------------------


def key_of(session: Session, slug: str, *which: ColumnElement[bool]) -> int:
    """The key of a run that is not deleted, and is one of these."""
    (key,) = row_of(session, select(Run.id), slug, *which)
    return key


def row_of(
    session: Session, selected: Select[*Columns], slug: str, *which: ColumnElement[bool]
) -> Row[*Columns]:
    """What is selected of a run that is not deleted, and is one of these."""
    row = session.execute(selected.where(Run.slug == slug, ALIVE, *which)).one_or_none()
    if row is not None:
        return row
    if session.scalar(select(Run.kind).where(Run.slug == slug, ALIVE)) == SAMPLES:
        raise RunMissingError(
            f"Run {slug} has many samples, and this takes runs of one; open it on its own page."
        )
    raise missing_run(slug)


def _load_arrays(
    session: Session, result_ids: Iterable[int], name: str | None = None
) -> dict[int, dict[str, Array]]:
    statement = select(Array).where(Array.result_id.in_(list(result_ids)))
    if name is not None:
        statement = statement.where(Array.name == name)
    arrays: dict[int, dict[str, Array]] = {}
    for row in session.scalars(statement):
        arrays.setdefault(row.result_id, {})[row.name] = row
    return arrays


# --- results that were decoded -----------------------------------------------------------


class DecodedRuns:
    """The results used last; any thread may call any method. Nobody changes what is handed out."""

    def __init__(self, most: int = MOST_DECODED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[RunKey, Decoded] = OrderedDict()

    def once(self, key: RunKey, decode: Callable[[], Decoded]) -> Decoded:
        """A run's request and result: as kept, or decoded, one at a time."""
        with self._lock:
            decoded = self._kept.pop(key, None) or decode()
            self._kept[key] = decoded
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return decoded

    def forget(self, slug: str) -> None:
        """Let a run go that is deleted; its name and row may come to be another's."""
        with self._lock:
            for key in [key for key in self._kept if key[1] == slug]:
                del self._kept[key]
