"""The only writer of runs: of one sample or many they are made, started, filled and ended here.

storage/library.py lists, annotates and deletes them, storage/repository.py reads them.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, case, delete, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ckv_core.errors import ConfigError, StorageError
from ckv_core.experiment.decide import random_order
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.experiment.study_file import study_values
from ckv_core.records.codec import plain, record_json, revived
from ckv_core.records.events import (
    FloorMeasured,
    Generated,
    Progress,
    RunEvent,
    RunFinished,
    RunPrepared,
    variant_changes,
)
from ckv_core.records.records import ModelInfo
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import method_of
from storage import library, repository, rows, servers
from storage.database import Database
from storage.models import (
    ACTIVE_STATES,
    ALIVE,
    OF_SAMPLES,
    SAMPLES,
    Array,
    JsonObject,
    ResultRow,
    Run,
    SampleRow,
)
from storage.records import SPOILT, RunState
from storage.repository import key_of, new_slug, row_of
from storage.usage import count_run, counted

if TYPE_CHECKING:
    from ckv_core.experiment.reading import Reading

GENERATED_INTERVAL_S = 1.0
TITLE_CHARS = 80
# What decides the outcome of a sample; other settings may change, and the results stay.
_FIXED = ("model", "scenario", "max_new_tokens", "metric", "read_once")
_RESULTS_AT_ONCE = 500
_CHARS_AT_ONCE = 4 * 2**20  # of samples
_HERE = (OF_SAMPLES, ALIVE)
_IS_ACTIVE = Run.state.in_(ACTIVE_STATES)
Facts = tuple[ModelInfo, Mapping[str, str]]  # what served a run
_UPSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Recorder:
    """Records runs; every method has committed when it returns and may be called by any thread.

    The end of a run of one sample is final: what comes later is passed over and the method returns
    False. One of many samples may be resumed. Text that grows is written once a second, and at its
    end or the run's.

    All methods raise StorageError if the database fails; those of many samples RunMissingError
    where there is no such run.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self.database = database
        self._clock = clock
        self._written: dict[str, float] = {}  # when the text of a run was, and ...
        self._waiting: dict[str, Generated] = {}  # ... what came of it since

    # --- made -------------------------------------------------------------------------------

    def create(
        self,
        request: RunRequest,
        title: str = "",
        owner: str | None = None,
    ) -> str:
        """Save a queued run of one sample; returns its slug.

        Args:
            request: as the user made it; validated by the caller.
            title: by default the first words of the question, or of the context.
            owner: the user who made it; None without logins.
        """
        title = title.strip() or title_of(request)
        columns = {"owner": owner, "server": self.database.server}
        with self.database.write() as session:
            return create_run(session, request, title, _now(), **columns)

    def save(self, study: RunRequest, samples: Sequence[Sample], owner: str | None = None) -> str:
        """Make a run of many samples, or extend the one of that name; returns its slug.

        Variants, budgets, tolerance and further samples may change, and the results stay. Samples
        that are new come in a random order behind those that are there: the first of them count
        while others are still to be run.

        Raises:
            ConfigError: something changed that decided the results which are there.
        """
        order = random_order([sample.source or sample.context for sample in samples])
        return self._save(study, [samples[at] for at in order], owner)

    def add(self, reading: "Reading", owner: str | None = None) -> str:
        """Store a study of a file, or its results to the one of that name; returns its slug.

        Raises:
            ConfigError: the study of that name has other samples, another setting or model.
        """
        model, versions = (reading.facts.get(name) for name in ("model_info", "environment"))
        facts = None if model is None else (revived(ModelInfo, model), versions or {})
        slug = self._save(reading.study, reading.samples, owner, facts)
        for at in range(0, len(reading.results), _RESULTS_AT_ONCE):
            with self.database.write_in_turn() as session:
                _save_results(session, slug, reading.results[at : at + _RESULTS_AT_ONCE])
        self.end(slug)
        return slug

    def _save(
        self,
        study: RunRequest,
        samples: Sequence[Sample],
        owner: str | None,
        facts: Facts | None = None,
    ) -> str:
        """Store what `save` gets, some samples at a time: others write meanwhile."""
        # Digests of long texts take time, so they are made before anybody waits.
        given = [rows.sample_columns(each) | {"digest": _digest(each)} for each in samples]
        slug, new = self.database.write_with(_save_study, study, given, owner, facts)
        for portion in _portions(new):
            with self.database.write_in_turn() as session:
                _insert_samples(session, slug, portion)
        self.database.write_with(_settle, slug, len(given))
        return slug

    def want(self, slug: str) -> None:
        """Have the app run the rest of a run of many samples, also after a restart."""
        rested = update(Run).where(Run.slug == slug, *_HERE, ~_IS_ACTIVE)
        values = {"state": "queued", "reason": "", "finished_at": None}
        self.database.write_with(lambda session: session.execute(rested.values(values)))

    # --- run --------------------------------------------------------------------------------

    def start(self, slug: str) -> bool:
        """Have this server run what is queued; False if it is over, or another that lives does.

        On SQLite, which has one server, none is noted.
        """
        return self.database.write_with(_start, slug, self.database.server)

    def release(self, slug: str) -> None:
        """Let another server run what this one no longer runs."""
        state = case((Run.state == "running", "queued"), else_=Run.state)
        own = update(Run).where(Run.slug == slug, Run.server == self.database.server)
        change = own.values(server=None, state=state)
        self.database.write_with(lambda session: session.execute(change))

    def apply(self, slug: str, event: RunEvent) -> bool:
        """Record one event of one sample; False if the run has ended or was deleted.

        Raises:
            StorageError: also if the event names a variant that the run lacks.
        """
        if isinstance(event, Progress) or self._is_soon(slug, event):
            return True
        return self.database.write_with(_save_event, slug, event)

    def commit(self, slug: str, results: Collection[SampleResult]) -> None:
        """Store results of many samples, all or none; what is done already stays as it is."""
        self.database.write_with(_save_results, slug, results)

    def served_by(self, slug: str, model: ModelInfo, environment: Mapping[str, str]) -> None:
        """Note the model that serves a run of many samples, and the versions.

        Raises:
            ConfigError: another model of that name gave the results which are there.
        """
        self.database.write_with(_set_facts, slug, model, environment)

    # --- ended ------------------------------------------------------------------------------

    def end(self, slug: str, state: RunState = "done", reason: str = "") -> bool:
        """Put a run into an end state; `reason` is the sentence that the user reads.

        One of many samples is done if all its results are there, and else unfinished.

        Returns:
            False if it is gone, or of one sample and over.
        """
        self._written.pop(slug, None)
        last = self._waiting.pop(slug, None)
        return self.database.write_with(_save_end, slug, state, reason, last)

    def recover(self, reason: str) -> int:
        """Fail the runs of one sample that dead servers left; on SQLite before any run alone.

        Returns:
            How many there were; what they had recorded stays.
        """
        return self.database.write_with(fail_unfinished, reason, _now())

    def _is_soon(self, slug: str, event: RunEvent) -> bool:
        """Whether it is text that follows the last within a second: that waits for what comes."""
        if not isinstance(event, Generated):
            return False
        now = self._clock()
        since = now - self._written.get(slug, -GENERATED_INTERVAL_S)
        if since < GENERATED_INTERVAL_S and not all(event.stopped):
            self._waiting[slug] = event
            return True
        self._waiting.pop(slug, None)
        self._written[slug] = now
        return False


def title_of(request: RunRequest) -> str:
    """The first words of the question, or of the context."""
    return first_words(request.question) or first_words(request.context) or "Untitled run"


def first_words(text: str) -> str:
    """A title out of a text's beginning."""
    # A long text is cut before it is split, and then at a word's end where there is one.
    words = " ".join(text[: TITLE_CHARS * 4].split())
    if len(words) <= TITLE_CHARS:
        return words
    cut = words[:TITLE_CHARS]
    return (cut.rpartition(" ")[0] or cut) + "…"


def _now() -> datetime:
    return datetime.now(UTC)


# --- life cycle; these take a Session and never commit ------------------------------------


def create_run(
    session: Session,
    request: RunRequest,
    title: str,
    now: datetime,
    **columns: Any,
) -> str:
    """Save a queued run of one sample, with more columns; returns its slug."""
    columns.setdefault("slug", new_slug())
    run = Run(
        title=title,
        state="queued",
        created_at=now,
        scenario=request.scenario,
        model_name=request.model,
        request=rows.request_json(request),
        kind=request.kind,
        **columns,
    )
    session.add(run)
    session.flush()
    session.execute(insert(SampleRow), {"run_id": run.id, **rows.only_sample(request)})
    library.index_run(session, run.id)
    count_run(session, run.id)
    return run.slug


def _active_run(session: Session, slug: str, *which: ColumnElement[bool]) -> int | None:
    """Key of a run that is not over, which other servers cannot change meanwhile; else None."""
    active = select(Run.id).where(Run.slug == slug, ALIVE, _IS_ACTIVE, *which)
    return session.scalar(active.with_for_update())


def _save_event(session: Session, slug: str, event: RunEvent) -> bool:
    """Write the event of an active run of one sample; False if there is none."""
    run_id = _active_run(session, slug, ~OF_SAMPLES)
    if run_id is not None:
        save_event(session, run_id, event)
    return run_id is not None


def _save_end(
    session: Session, slug: str, state: RunState, reason: str, last: Generated | None
) -> bool:
    """End a run, with the last text of it that waits."""
    wanted = select(Run.id, Run.kind).where(Run.slug == slug, ALIVE, OF_SAMPLES | _IS_ACTIVE)
    run = session.execute(wanted.with_for_update()).one_or_none()
    if run is None:
        return False
    if run.kind == SAMPLES:
        state = _state_at_rest(session, slug)
        _update_run(session, run.id, {"state": state, "reason": reason, "finished_at": _now()})
    else:
        if last is not None:
            save_event(session, run.id, last)
        end_run(session, run.id, state, reason, _now())
    return True


def _start(session: Session, slug: str, server: int | None) -> bool:
    run_id = _active_run(session, slug)
    other = session.scalar(select(Run.server).where(Run.id == run_id))
    if run_id is None or (other not in (None, server) and not servers.is_gone(session, other)):
        return False
    started = func.coalesce(Run.started_at, _now())
    values = {"server": server, "state": "running", "started_at": started}
    _update_run(session, run_id, values)
    return True


def end_run(session: Session, run_id: int, state: RunState, reason: str, now: datetime) -> None:
    """Put a run of one sample into an end state, and make what was generated findable."""
    _update_run(session, run_id, {"state": state, "reason": reason, "finished_at": now})
    library.index_run(session, run_id)
    count_run(session, run_id)


def _state_at_rest(session: Session, slug: str) -> RunState:
    """The state of a run of many samples that nobody runs."""
    counts = None
    with suppress(*SPOILT):
        counts = repository.load_study(session, slug).counts
    return "done" if counts and counts.is_whole else "unfinished"


def fail_unfinished(session: Session, reason: str, now: datetime) -> int:
    """Fail the queued and running runs of servers that are gone; what was recorded stays.

    Those of many samples are resumed instead.

    Returns:
        How many there were.
    """
    of_gone = or_(Run.server.in_(servers.gone_servers(session)), Run.server.is_(None))
    active = select(Run.id).where(_IS_ACTIVE, of_gone, ~OF_SAMPLES)
    left = session.scalars(active.with_for_update()).all()
    for run_id in left:
        end_run(session, run_id, "failed", reason, now)
    return len(left)


# --- events of one sample -----------------------------------------------------------------


def save_event(session: Session, run_id: int, event: RunEvent) -> None:
    """Record an event; the state of a run changes only with `end_run`.

    Raises:
        StorageError: the event names a variant that the run lacks.
    """
    match event:
        case RunPrepared():
            _save_prepared(session, run_id, event)
        case FloorMeasured():
            _update_run(session, run_id, {"floor": plain(event.floor)})
        case RunFinished():
            estimated = session.scalar(select(Run.memory).where(Run.id == run_id)) or {}
            memory = {**estimated, **event.memory}
            done = {"timings_ms": plain(event.timings_ms), "complete": True, "memory": memory}
            _update_run(session, run_id, done)
        case _:
            _save_changes(session, run_id, dict(variant_changes(event)))


def _save_prepared(session: Session, run_id: int, event: RunPrepared) -> None:
    """Save model, prompt and the variants, in place of any that were there."""
    columns = {
        "model": plain(event.model),
        "model_name": event.model.name,
        "prompt_tokens": event.prompt.tokens,
        "environment": dict(event.environment),
        "kind": event.kind,
        "memory": dict(event.memory),
        "floor": None,
    }
    _update_run(session, run_id, columns)
    prompt = {"prompt": rows.encode_json(record_json(event.prompt))}
    session.execute(update(SampleRow).where(SampleRow.run_id == run_id).values(prompt))
    session.execute(delete(ResultRow).where(ResultRow.run_id == run_id))
    changes = [
        {item.name: getattr(variant, item.name) for item in fields(variant)}
        for variant in event.variants
    ]
    key = {"run_id": run_id, "sample": rows.ONLY_SAMPLE, "budget": "", "budget_tokens": None}
    results = [
        {**key, "position": index, **rows.result_columns(members)}
        for index, members in enumerate(changes)
    ]
    inserted = insert(ResultRow).returning(ResultRow.id, sort_by_parameter_order=True)
    ids = session.scalars(inserted, results) if results else ()
    _replace_arrays(session, dict(zip(ids, changes, strict=True)))


def _save_changes(session: Session, run_id: int, changes: Mapping[int, Mapping[str, Any]]) -> None:
    known = select(ResultRow.position, ResultRow.id, ResultRow.document).where(
        ResultRow.run_id == run_id, ResultRow.position.in_(changes)
    )
    found = {row.position: row for row in session.execute(known)}
    for index in changes.keys() - found.keys():
        raise StorageError(f"An event names variant {index}, which this run does not have.")
    updates = [
        {"id": found[index].id, **columns}
        for index, members in changes.items()
        if (columns := rows.result_columns(members, found[index].document))
    ]
    if updates:
        session.execute(update(ResultRow), updates)
    _replace_arrays(session, {found[index].id: members for index, members in changes.items()})


def _replace_arrays(session: Session, changes: Mapping[int, Mapping[str, Any]]) -> None:
    """Write arrays by the keys of their results, for all of which an event names the same."""
    arrays = {key: rows.variant_arrays(members) for key, members in changes.items()}
    names = {name for of_variant in arrays.values() for name in of_variant}
    session.execute(delete(Array).where(Array.result_id.in_(arrays), Array.name.in_(names)))
    written = [
        {"result_id": key, "name": name, **array}
        for key, of_variant in arrays.items()
        for name, array in of_variant.items()
        if array
    ]
    if written:
        session.execute(insert(Array), written)


def _update_run(session: Session, run_id: int, columns: rows.Columns) -> None:
    session.execute(update(Run).where(Run.id == run_id).values(columns))


# --- many samples and their results ---------------------------------------------------------


def _save_study(
    session: Session,
    study: RunRequest,
    given: Sequence[rows.Columns],
    owner: str | None,
    facts: Facts | None,
) -> tuple[str, list[rows.Columns]]:
    """Make or change a run of many samples; returns its slug, and the samples it has not yet."""
    upsert = _UPSERTS[session.get_bind().dialect.name](Run)
    values = {
        "slug": new_slug(),
        "owner": owner,
        "kind": SAMPLES,
        "title": study.name,
        "state": "unfinished",
        "created_at": _now(),
        "scenario": study.scenario,
        "model_name": study.model,
        "request": _definition(study),
    }
    made = upsert.values(values).on_conflict_do_nothing().returning(Run.id)
    if (run_id := session.scalar(made)) is not None:
        count_run(session, run_id)
        library.index_run(session, run_id)
    of_name = select(Run).where(*_HERE, Run.owner == owner, Run.title == study.name)
    row = session.scalars(of_name.with_for_update()).one()
    old = repository.study_of(row.request, row.title)
    for name in _FIXED:
        before, now = getattr(old, name), getattr(study, name)
        if before != now:
            raise ConfigError(
                f"Run {study.name!r} was made with {name} {before!r}, and now has {now!r}; give "
                "the changed run another name."
            )
    new = _new_samples(session, row.id, study, given)
    of_run = select(ResultRow.id).where(ResultRow.run_id == row.id).limit(1)
    has_results = session.scalar(of_run) is not None
    with counted(session, row.id, Run, Run.id == row.id):
        row.request = _definition(study.after(old) if has_results else study)
    if facts is not None:
        _set_facts(session, row.slug, *facts)
    return row.slug, new


def _definition(study: RunRequest) -> JsonObject:
    return {key: value for key, value in study_values(study).items() if key != "name"}


def _new_samples(
    session: Session, run_id: int, study: RunRequest, given: Sequence[rows.Columns]
) -> list[rows.Columns]:
    """The samples that are not there yet, with their places.

    Raises:
        ConfigError: one that is there was changed or left out, or the study's size is fixed.
    """
    statement = select(SampleRow.sample, SampleRow.digest).where(SampleRow.run_id == run_id)
    known = {row.sample: row.digest for row in session.execute(statement)}
    digests = {each["sample"]: each["digest"] for each in given}
    for sample, digest in known.items():
        if digests.get(sample) != digest:
            raise ConfigError(
                f"Sample {sample!r} of run {study.name!r} was changed or removed since; give the "
                "changed run another name."
            )
    added = [each for each in given if each["sample"] not in known]
    if known and added and study.read_once:
        raise ConfigError(
            f"Run {study.name!r} is decided once, at its end, so its {len(known):,} samples are "
            "fixed; give the larger run another name."
        )
    return [{**each, "position": at} for at, each in enumerate(added, start=len(known))]


def _portions(new: Sequence[rows.Columns]) -> Iterator[list[rows.Columns]]:
    """Samples to write at a time: as many as are written in a part of a second."""
    portion, size = [], 0
    for each in new:
        portion.append(each)
        size += len(each["context"])
        if size >= _CHARS_AT_ONCE or each is new[-1]:
            yield portion
            portion, size = [], 0


def _insert_samples(session: Session, slug: str, portion: Sequence[rows.Columns]) -> None:
    (run_id,) = row_of(session, select(Run.id).with_for_update(), slug, OF_SAMPLES)
    upsert = _UPSERTS[session.get_bind().dialect.name](SampleRow).on_conflict_do_nothing()
    written = SampleRow.position.in_([each["position"] for each in portion])
    with counted(session, run_id, SampleRow, SampleRow.run_id == run_id, written):
        session.execute(upsert, [{**each, "run_id": run_id} for each in portion])


def _settle(session: Session, slug: str, count: int) -> None:
    """Give a run that nobody runs its state, once its samples are there."""
    (row,) = row_of(session, select(Run).with_for_update(), slug, OF_SAMPLES)
    of_run = select(func.count()).where(SampleRow.run_id == row.id)
    if (session.scalar(of_run) or 0) < count:
        raise StorageError("Somebody else changed this run at the same time; save it again.")
    if row.state not in ACTIVE_STATES:
        row.state, row.finished_at = _state_at_rest(session, slug), _now()


def _digest(sample: Sample) -> str:
    given = {name: value for name, value in asdict(sample).items() if value is not None}
    text = json.dumps(given, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _save_results(session: Session, slug: str, results: Collection[SampleResult]) -> None:
    """Write results; one that is done already stays as it is."""
    if not results:
        return
    run_id = key_of(session, slug, OF_SAMPLES)
    upsert = _UPSERTS[session.get_bind().dialect.name](ResultRow)
    common = {"run_id": run_id, "finished_at": _now()}
    written = [
        {**asdict(each), **common}
        | {"budget": each.budget or "", "method": method_of(each.variant).partition("+")[0].strip()}
        | {"figures": plain(each.figures)}
        for each in results
    ]
    key = ("run_id", "sample", "variant", "budget")
    values = {name: upsert.excluded[name] for name in written[0] if name not in key}
    is_open = ResultRow.state != "done"
    statement = upsert.on_conflict_do_update(index_elements=key, set_=values, where=is_open)
    of_samples = ResultRow.sample.in_({each.sample for each in results})
    with counted(session, run_id, ResultRow, ResultRow.run_id == run_id, of_samples):
        session.execute(statement, written)


def _set_facts(
    session: Session, slug: str, model: ModelInfo, environment: Mapping[str, str]
) -> None:
    selected = select(Run.id, Run.title, Run.model)
    run_id, title, old = row_of(session, selected, slug, OF_SAMPLES)
    if old is not None and old.get("sha256") != model.sha256:
        raise ConfigError(
            f"The weights of {model.name!r} are not those that run {title!r} was made with; give "
            "the run another name."
        )
    facts = {"model": asdict(model), "environment": dict(environment)}
    with counted(session, run_id, Run, Run.id == run_id):
        session.execute(update(Run).where(Run.id == run_id).values(facts))
