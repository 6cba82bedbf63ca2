"""Queries on runs. Take a Session, return records, never commit; event_rows.py has the rest."""

import secrets
import string
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from typing import cast

from sqlalchemy import ColumnElement, CursorResult, delete, func, select, true, update
from sqlalchemy.orm import Session

from ckv_core.config import CompareRequest, Kind
from ckv_core.errors import StorageError
from ckv_core.events import RunResult
from ckv_core.records import RetainedSet
from storage import mapping
from storage.codecs import EncodedArray, decode_retained
from storage.column_types import AnyText
from storage.models import ACTIVE_STATES, SLUG_LENGTH, Array, Prompt, Run, Variant
from storage.records import RunState, RunSummary, StoredPrompt, StoredRun

QUESTION_START_CHARS = 200
_SLUG_ALPHABET = string.ascii_lowercase + string.digits
_ARRAY_FIELDS = tuple(field.name for field in fields(EncodedArray))


class RunMissingError(StorageError):
    """No run has that slug (any more)."""


# --- reading ----------------------------------------------------------------------------


def load_run(session: Session, slug: str) -> StoredRun:
    """A run with everything that was recorded of it.

    Raises:
        RunMissingError: there is none of that name.
    """
    found = session.execute(
        select(Run, Prompt).join(Prompt, Prompt.run_id == Run.id).where(Run.slug == slug)
    ).one_or_none()
    if found is None:
        raise _missing(slug)
    run, prompt = found
    variants = session.scalars(
        select(Variant).where(Variant.run_id == run.id).order_by(Variant.position)
    ).all()
    arrays = _load_arrays(session, [variant.id for variant in variants])
    result = RunResult(
        model=mapping.model_record(run.model),
        prompt=mapping.prompt_record(prompt),
        variants=[mapping.variant_record(row, arrays.get(row.id, {})) for row in variants],
        environment=run.environment,
        timings_ms=run.timings_ms,
        finished=run.complete,
        kind=cast("Kind", run.kind),
        memory=run.memory or {},
    )
    return StoredRun(
        slug=run.slug,
        title=run.title,
        state=cast("RunState", run.state),
        reason=run.reason,
        created_at=run.created_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        request=mapping.request_record(run.request, prompt),
        result=result,
        owner=run.owner,
    )


def load_retained(session: Session, slug: str, index: int) -> RetainedSet | None:
    """The kept set of one variant alone; None for `full` and before selection.

    Raises:
        RunMissingError: there is no such run or variant.
    """
    variant_id = session.scalar(
        select(Variant.id)
        .join(Run, Run.id == Variant.run_id)
        .where(Run.slug == slug, Variant.position == index)
    )
    if variant_id is None:
        raise RunMissingError(f"There is no run {slug!r} with a variant {index}.")
    arrays = _load_arrays(session, [variant_id], "retained").get(variant_id, {})
    return decode_retained(arrays["retained"]) if arrays else None


def load_prompt(session: Session, slug: str) -> StoredPrompt:
    """The texts and tokens of a run.

    Raises:
        RunMissingError: there is none of that name.
    """
    row = session.scalar(select(Prompt).join(Run, Run.id == Prompt.run_id).where(Run.slug == slug))
    if row is None:
        raise _missing(slug)
    return StoredPrompt(
        context=row.context,
        question=row.question,
        answer=row.answer,
        tokenised=mapping.prompt_record(row),
    )


def list_runs(
    session: Session, limit: int = 50, offset: int = 0, owner: str | None = None
) -> list[RunSummary]:
    """Newest runs first; of runs made in the same instant the later one first.

    Those of one owner; of everybody for None.
    """
    start = func.substr(Prompt.question, 1, QUESTION_START_CHARS, type_=AnyText())
    rows = session.execute(
        select(
            Run.id,
            Run.slug,
            Run.title,
            start.label("question_start"),
            Run.model_name,
            Run.state,
            Run.request,
            Run.prompt_tokens,
            Run.created_at,
        )
        .join(Prompt, Prompt.run_id == Run.id)
        .where(_owned_by(owner))
        .order_by(Run.created_at.desc(), Run.id.desc())
        .limit(limit)
        .offset(offset)
    ).all()
    specs: dict[int, list[str]] = {row.id: [] for row in rows}
    for run_id, spec in session.execute(
        select(Variant.run_id, Variant.spec)
        .where(Variant.run_id.in_(specs))
        .order_by(Variant.run_id, Variant.position)
    ):
        specs[run_id].append(spec)
    return [
        RunSummary(
            slug=row.slug,
            title=row.title,
            question_start=row.question_start,
            model_name=row.model_name,
            state=row.state,
            variant_specs=tuple(specs[row.id] or row.request["variants"]),
            prompt_tokens=row.prompt_tokens,
            created_at=row.created_at,
        )
        for row in rows
    ]


def count_runs(session: Session, owner: str | None = None) -> int:
    """How many runs are saved; of this owner alone if one is given."""
    return session.scalar(select(func.count()).select_from(Run).where(_owned_by(owner))) or 0


def run_owner(session: Session, slug: str) -> str | None:
    """Who made a run; None if it was made without logins.

    Raises:
        RunMissingError: there is none of that name.
    """
    row = session.execute(select(Run.id, Run.owner).where(Run.slug == slug)).one_or_none()
    if row is None:
        raise _missing(slug)
    _, owner = row
    return owner


# --- states -----------------------------------------------------------------------------


def create_run(
    session: Session,
    request: CompareRequest,
    title: str,
    now: datetime,
    owner: str | None = None,
) -> str:
    """Save a queued run; returns its slug."""
    run = Run(
        slug="".join(secrets.choice(_SLUG_ALPHABET) for _ in range(SLUG_LENGTH)),
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
    )
    session.add(run)
    session.flush()
    session.add(
        Prompt(
            run_id=run.id,
            question=request.question,
            answer=request.answer,
            context=request.context,
        )
    )
    session.flush()
    return run.slug


def mark_running(session: Session, slug: str, now: datetime) -> bool:
    """Queued becomes running; False if it was not queued."""
    statement = update(Run).where(Run.slug == slug, Run.state == "queued")
    return _changed(session.execute(statement.values(state="running", started_at=now))) == 1


def end_run(session: Session, slug: str, state: RunState, reason: str, now: datetime) -> bool:
    """Put an active run into an end state; False if it is in one already, or gone."""
    statement = update(Run).where(Run.slug == slug, Run.state.in_(ACTIVE_STATES))
    values = {"state": state, "reason": reason, "finished_at": now}
    return _changed(session.execute(statement.values(values))) == 1


def fail_unfinished(session: Session, reason: str, now: datetime) -> int:
    """Fail every queued or running run; what was recorded stays. Returns how many."""
    statement = update(Run).where(Run.state.in_(ACTIVE_STATES))
    values = {"state": "failed", "reason": reason, "finished_at": now}
    return _changed(session.execute(statement.values(values)))


def delete_run(session: Session, slug: str) -> bool:
    """Delete a run and all that hangs on it; False if there was none."""
    return _changed(session.execute(delete(Run).where(Run.slug == slug))) == 1


def active_run_id(session: Session, slug: str) -> int | None:
    """Key of a queued or running run; None if it ended or is gone."""
    return session.scalar(select(Run.id).where(Run.slug == slug, Run.state.in_(ACTIVE_STATES)))


# --- parts ------------------------------------------------------------------------------


def _owned_by(owner: str | None) -> ColumnElement[bool]:
    return true() if owner is None else Run.owner == owner


def _missing(slug: str) -> RunMissingError:
    return RunMissingError(f"There is no run {slug!r}; it may have been deleted.")


def _changed(result: object) -> int:
    return cast("CursorResult[object]", result).rowcount


def _load_arrays(
    session: Session, variant_ids: Iterable[int], name: str | None = None
) -> dict[int, dict[str, EncodedArray]]:
    statement = select(Array).where(Array.variant_id.in_(list(variant_ids)))
    if name is not None:
        statement = statement.where(Array.name == name)
    found: dict[int, dict[str, EncodedArray]] = {}
    for row in session.scalars(statement):
        encoded = EncodedArray(*(getattr(row, field) for field in _ARRAY_FIELDS))
        found.setdefault(row.variant_id, {})[row.name] = encoded
    return found
