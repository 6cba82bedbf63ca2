"""Queries on runs. Take a Session, return records, never commit; event_rows.py has the rest."""

import re
import secrets
import string
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVarTuple, cast

from sqlalchemy import Row, Select, func, or_, select, update
from sqlalchemy.orm import Session

from ckv_core.errors import CkvError, StorageError
from ckv_core.request.compare_request import CompareRequest, Kind
from ckv_core.results.codec import revived
from ckv_core.results.events import RunResult
from ckv_core.results.records import ModelInfo, RetainedSet, RoundingFloor
from storage import mapping, search, servers, usage
from storage.codecs import EncodedArray, decode_retained
from storage.decoded import Decoded, DecodedRuns
from storage.models import (
    ACTIVE_STATES,
    ALIVE,
    OF_SAMPLES,
    SLUG_LENGTH,
    Array,
    Prompt,
    Run,
    Tag,
    Variant,
)
from storage.records import SPOILT, Lineage, RunNotes, RunState, StoredRun, record_of

SLUG_ALPHABET = string.ascii_lowercase + string.digits
_SLUG = re.compile(r"[a-z0-9]{6,32}", re.ASCII)
Columns = TypeVarTuple("Columns")


class RunMissingError(StorageError):
    """No run has that slug (any more)."""


def is_slug(text: object) -> bool:
    """Whether a client's text can name a run at all."""
    return isinstance(text, str) and _SLUG.fullmatch(text) is not None


def new_slug() -> str:
    """A random name for a link."""
    return "".join(secrets.choice(SLUG_ALPHABET) for _ in range(SLUG_LENGTH))


def missing_run(slug: str) -> RunMissingError:
    """What to raise where a run is not there, or not for whoever asks."""
    return RunMissingError(f"There is no run {slug!r}; it may have been deleted.")


# --- reading ----------------------------------------------------------------------------


def load_run(session: Session, slug: str, kept: DecodedRuns | None = None) -> StoredRun:
    """A run with everything that was recorded of it.

    The result of a run that is over is looked for, and kept, in `kept`.

    Raises:
        RunMissingError: there is none of that name.
        StorageError: it is spoilt.
    """
    with_prompt = select(Run, Prompt).join(Prompt, Prompt.run_id == Run.id)
    with explained(slug):
        run, prompt = _row_of(session, with_prompt, slug)

        def decode() -> Decoded:
            return mapping.request_record(run.request, prompt), _load_result(session, run, prompt)

        key = (run.id, slug, run.created_at, run.finished_at)
        is_over = run.state not in ACTIVE_STATES
        request, result = kept.once(key, decode) if kept and is_over else decode()
        return record_of(StoredRun, run, request=request, result=result)


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


def load_request(session: Session, slug: str) -> CompareRequest:
    """What a run was asked, its texts too.

    Raises:
        RunMissingError: there is none of that name.
    """
    with_prompt = select(Run.request, Prompt).join(Prompt, Prompt.run_id == Run.id)
    with explained(slug):
        return mapping.request_record(*_row_of(session, with_prompt, slug))


def _load_result(session: Session, run: Run, prompt: Prompt) -> RunResult:
    variants = session.scalars(
        select(Variant).where(Variant.run_id == run.id).order_by(Variant.position)
    ).all()
    arrays = _load_arrays(session, [variant.id for variant in variants])
    return RunResult(
        model=None if run.model is None else revived(ModelInfo, run.model),
        prompt=mapping.prompt_record(prompt),
        variants=[mapping.variant_record(row.document, arrays.get(row.id, {})) for row in variants],
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
        RunMissingError: there is no such run or variant.
    """
    variant_id = None
    if 0 <= index < 2**31:  # what a position's column holds
        variant_id = session.scalar(
            select(Variant.id)
            .join(Run, Run.id == Variant.run_id)
            .where(Run.slug == slug, ALIVE, Variant.position == index)
        )
    if variant_id is None:
        raise RunMissingError(f"There is no run {slug!r} with a variant {index}.")
    arrays = _load_arrays(session, [variant_id], "retained").get(variant_id, {})
    with explained(slug):
        return decode_retained(arrays["retained"]) if arrays else None


def load_notes(session: Session, slug: str) -> RunNotes:
    """Note and tags of a run.

    Raises:
        RunMissingError: there is none of that name.
    """
    run_id, note = _row_of(session, select(Run.id, Run.note), slug)
    tags = session.scalars(select(Tag.name).where(Tag.run_id == run_id).order_by(Tag.name))
    return RunNotes(note, tuple(tags))


def run_owner(session: Session, slug: str) -> str | None:
    """Who made a run; None if it was made without logins.

    Raises:
        RunMissingError: there is none of that name.
    """
    (owner,) = _row_of(session, select(Run.owner), slug)
    return owner


def count_by_state(session: Session) -> dict[str, int]:
    """How many runs that are not deleted are in each state."""
    rows = session.execute(
        select(Run.state, func.count().label("runs")).where(ALIVE).group_by(Run.state)
    )
    return {row.state: row.runs for row in rows}


# --- states -----------------------------------------------------------------------------


def create_run(
    session: Session,
    request: CompareRequest,
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
        request=mapping.request_json(request),
        kind=request.kind,
        environment={},
        timings_ms={},
        owner=owner,
        parent_slug=lineage.parent if lineage else None,
        lineage=lineage.kind if lineage else None,
    )
    session.add(run)
    session.flush()
    session.add(
        Prompt(
            run_id=run.id,
            question=request.question,
            answer=request.answer,
            context=request.context,
            own_indices=mapping.own_column(request.own_indices),
        )
    )
    session.flush()
    search.index_run(session, run.id)
    usage.count_run(session, run.id)
    return run.slug


def mark_running(session: Session, slug: str, now: datetime) -> bool:
    """Queued becomes running; False if it was not queued."""
    statement = update(Run).where(Run.slug == slug, Run.state == "queued").returning(Run.id)
    return session.scalar(statement.values(state="running", started_at=now)) is not None


def end_run(session: Session, slug: str, state: RunState, reason: str, now: datetime) -> bool:
    """Put an active run into an end state; False if it is in one already, or gone."""
    run_id = active_run_id(session, slug)
    if run_id is not None:
        _end(session, run_id, {"state": state, "reason": reason, "finished_at": now})
    return run_id is not None


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
        _end(session, run_id, {"state": "failed", "reason": reason, "finished_at": now})
    return len(left)


def active_run_id(session: Session, slug: str) -> int | None:
    """Key of a queued or running run; None if it ended or is gone.

    Another server that asks for it while writing waits until this transaction is over.
    """
    statement = select(Run.id).where(Run.slug == slug, ALIVE)
    return session.scalar(statement.where(Run.state.in_(ACTIVE_STATES)).with_for_update())


def run_end(session: Session, slug: str) -> tuple[RunState, str] | None:
    """State and reason of a run that is over; None if it is not, or is gone."""
    statement = select(Run.state, Run.reason).where(Run.slug == slug, ALIVE)
    row = session.execute(statement.where(Run.state.not_in(ACTIVE_STATES))).one_or_none()
    return row and (cast("RunState", row.state), row.reason)


# --- parts ------------------------------------------------------------------------------


def _row_of(session: Session, selected: Select[*Columns], slug: str) -> Row[*Columns]:
    """What is selected of a run that is not deleted.

    Raises:
        RunMissingError: there is none of that name, or it has many samples and no prompt.
    """
    row = session.execute(selected.where(Run.slug == slug, ALIVE)).one_or_none()
    if row is not None:
        return row
    if session.scalar(select(Run.id).where(Run.slug == slug, ALIVE)) is not None:
        raise RunMissingError(
            f"Run {slug} has many samples, and this takes runs of one; open it on its own page."
        )
    raise missing_run(slug)


def _end(session: Session, run_id: int, values: dict[str, object]) -> None:
    """Write an end state, and make what was generated findable."""
    session.execute(update(Run).where(Run.id == run_id).values(values))
    search.index_run(session, run_id)
    usage.count_run(session, run_id)


def _load_arrays(
    session: Session, variant_ids: Iterable[int], name: str | None = None
) -> dict[int, dict[str, EncodedArray]]:
    statement = select(Array).where(Array.variant_id.in_(list(variant_ids)))
    if name is not None:
        statement = statement.where(Array.name == name)
    arrays: dict[int, dict[str, EncodedArray]] = {}
    for row in session.scalars(statement):
        arrays.setdefault(row.variant_id, {})[row.name] = record_of(EncodedArray, row)
    return arrays
