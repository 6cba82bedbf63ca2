"""The only writer of runs of one sample: requests, events and ends become committed rows."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.orm import Session

from ckv_core.errors import StorageError
from ckv_core.records.codec import plain, record_json
from ckv_core.records.events import (
    FloorMeasured,
    Generated,
    Progress,
    RunEvent,
    RunFinished,
    RunPrepared,
    variant_changes,
)
from ckv_core.records.run_request import RunRequest
from storage import rows, search, servers, usage
from storage.database import Database
from storage.models import ACTIVE_STATES, ALIVE, OF_SAMPLES, Array, ResultRow, Run, SampleRow
from storage.records import Lineage, RunState
from storage.repository import new_slug

GENERATED_INTERVAL_S = 1.0
TITLE_CHARS = 80


@dataclass(slots=True)
class _Generation:
    """Last write of one run's text, and what came since."""

    written_at: float
    waiting: Generated | None = None


class Recorder:
    """Records runs; every method has committed when it returns and may be called by any thread.

    An end state is final: what comes later is passed over and the method returns False. The one
    thing held back is generated text, for up to a second after the last write of it; the next
    event of another kind, the next text after that second, or the end of the run writes it.

    All methods raise StorageError if the database fails.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._generations: dict[str, _Generation] = {}

    def create(
        self,
        request: RunRequest,
        title: str = "",
        owner: str | None = None,
        lineage: Lineage | None = None,
    ) -> str:
        """Save a queued run; returns its slug.

        Args:
            request: as the user made it; validated by the caller.
            title: by default the first words of the question, or of the context.
            owner: the user who made it; None without logins.
            lineage: the run that it was made from.
        """
        title = title.strip() or title_of(request)
        with self._lock, self._database.write() as session:
            slug = create_run(session, request, title, _now(), owner, lineage)
            own = update(Run).where(Run.slug == slug)
            session.execute(own.values(server=self._database.server))
            return slug

    def start(self, slug: str) -> bool:
        """Queued becomes running."""
        running = {"state": "running", "started_at": _now()}
        queued = update(Run).where(Run.slug == slug, Run.state == "queued").returning(Run.id)
        with self._lock:
            started = self._database.write_with(
                lambda session: session.scalar(queued.values(running))
            )
            return started is not None

    def apply(self, slug: str, event: RunEvent) -> bool:
        """Record one event; False if the run has ended or was deleted.

        Raises:
            StorageError: also if the event names a variant that the run lacks.
        """
        if isinstance(event, Progress):
            return True
        with self._lock:
            if isinstance(event, Generated) and self._hold(slug, event):
                return True
            run_id = self._database.write_with(self._save, slug, event)
            if run_id is None:
                self._generations.pop(slug, None)
            elif isinstance(event, Generated) or slug in self._generations:
                self._generations[slug] = _Generation(self._clock())
            return run_id is not None

    def finish(self, slug: str) -> bool:
        return self._end(slug, "done", "")

    def fail(self, slug: str, reason: str) -> bool:
        """The run failed; `reason` is the sentence that the user reads."""
        return self._end(slug, "failed", reason)

    def cancel(self, slug: str, reason: str) -> bool:
        """The run was stopped; `reason` is the sentence that the user reads."""
        return self._end(slug, "cancelled", reason)

    def recover(self, reason: str) -> int:
        """Fail the runs that dead servers left behind; on SQLite at start only, before any run.

        Returns:
            How many there were; what they had recorded stays.
        """
        with self._lock, self._database.write() as session:
            return fail_unfinished(session, reason, _now())

    def _hold(self, slug: str, event: Generated) -> bool:
        generation = self._generations.get(slug)
        if generation is None or self._clock() - generation.written_at >= GENERATED_INTERVAL_S:
            return False
        generation.waiting = event
        return True

    def _save(self, session: Session, slug: str, event: RunEvent) -> int | None:
        """Key of the active run whose event was saved; None if there is none."""
        run_id = active_run_id(session, slug)
        if run_id is not None:
            if not isinstance(event, Generated):
                self._flush(session, run_id, slug)
            save_event(session, run_id, event)
        return run_id

    def _save_end(self, session: Session, slug: str, state: RunState, reason: str) -> int | None:
        """Key of the run that ended; None if none was active."""
        run_id = active_run_id(session, slug)
        if run_id is not None:
            self._flush(session, run_id, slug)
            end_run(session, run_id, state, reason, _now())
        return run_id

    def _flush(self, session: Session, run_id: int, slug: str) -> None:
        generation = self._generations.get(slug)
        if generation is not None and generation.waiting is not None:
            save_event(session, run_id, generation.waiting)

    def end_of(self, slug: str) -> tuple[RunState, str] | None:
        """How a run ended, also if another server ended it; None if it has not, or is gone."""
        statement = select(Run.state, Run.reason).where(Run.slug == slug, ALIVE)
        with self._database.read() as session:
            row = session.execute(statement.where(Run.state.not_in(ACTIVE_STATES))).one_or_none()
        return row and (cast("RunState", row.state), row.reason)

    def _end(self, slug: str, state: RunState, reason: str) -> bool:
        with self._lock:
            run_id = self._database.write_with(self._save_end, slug, state, reason)
            self._generations.pop(slug, None)
            return run_id is not None


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


# --- changes that take a Session and never commit ---------------------------------------


def create_run(
    session: Session,
    request: RunRequest,
    title: str,
    now: datetime,
    owner: str | None = None,
    lineage: Lineage | None = None,
) -> str:
    """Save a queued run; returns its slug."""
    run = Run(
        slug=new_slug(),
        title=title,
        state="queued",
        reason="",
        created_at=now,
        scenario=request.scenario,
        model_name=request.model,
        complete=False,
        request=rows.request_json(request),
        kind=request.kind,
        environment={},
        timings_ms={},
        owner=owner,
        parent_slug=lineage.parent if lineage else None,
        lineage=lineage.kind if lineage else None,
    )
    session.add(run)
    session.flush()
    session.execute(insert(SampleRow), {"run_id": run.id, **rows.sample_columns(request)})
    search.index_run(session, run.id)
    usage.count_run(session, run.id)
    return run.slug


def active_run_id(session: Session, slug: str) -> int | None:
    """Key of a queued or running run; None if it ended or is gone.

    Another server that needs it for writing waits until this transaction is over.
    """
    statement = select(Run.id).where(Run.slug == slug, ALIVE)
    return session.scalar(statement.where(Run.state.in_(ACTIVE_STATES)).with_for_update())


def end_run(session: Session, run_id: int, state: RunState, reason: str, now: datetime) -> None:
    """Put a run into an end state, and make what was generated findable."""
    ended = {"state": state, "reason": reason, "finished_at": now}
    _update_run(session, run_id, ended)
    search.index_run(session, run_id)
    usage.count_run(session, run_id)


def fail_unfinished(session: Session, reason: str, now: datetime) -> int:
    """Fail the queued and running runs of servers that are gone; what was recorded stays.

    Those of many samples are resumed instead.

    Returns:
        How many there were.
    """
    of_gone = or_(Run.server.in_(servers.gone_servers(session)), Run.server.is_(None))
    active = select(Run.id).where(Run.state.in_(ACTIVE_STATES), of_gone, ~OF_SAMPLES)
    left = session.scalars(active.with_for_update()).all()
    for run_id in left:
        end_run(session, run_id, "failed", reason, now)
    return len(left)


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
