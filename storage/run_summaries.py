"""Lines of a list of runs: what each was asked, and what came out; no result is decoded."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, func, literal, not_, select
from sqlalchemy.orm import Session

from ckv_core.results.outcomes import Tally
from storage.column_types import UtcDateTime
from storage.models import SAMPLES, Run, Tag, Variant
from storage.records import SPOILT, ResultCounts, RunSummary, record_of
from storage.sample_rows import count_results, study_of

UNKNOWN = datetime(1970, 1, 1, tzinfo=UTC)


def summaries(session: Session, keys: Sequence[int]) -> list[RunSummary]:
    """The runs of these keys, in their order."""
    by_key = _rows(session, keys)
    tags: dict[int, list[str]] = {key: [] for key in keys}
    for run_id, name in session.execute(
        select(Tag.run_id, Tag.name).where(Tag.run_id.in_(keys)).order_by(Tag.name)
    ):
        tags[run_id].append(name)
    specs: dict[int, list[str]] = {key: [] for key in keys}
    for run_id, spec in session.execute(
        select(Variant.run_id, Variant.spec)
        .where(Variant.run_id.in_(keys))
        .order_by(Variant.run_id, Variant.position)
    ):
        specs[run_id].append(spec)
    failed = [key for key, row in by_key.items() if row.state == "failed"]
    outcomes = _outcomes(session, keys, failed)
    found = []
    for key in keys:
        row, own, counts = by_key[key], tuple(specs[key]), None
        if row.kind == SAMPLES:
            own, counts = _of_samples(session, key)
        found.append(
            record_of(
                RunSummary,
                row,
                variant_specs=own or _asked(session, key),
                tags=tuple(tags[key]),
                outcome=outcomes.get(key, Tally()),
                counts=counts,
            )
        )
    return found


def _rows(session: Session, keys: Sequence[int]) -> dict[int, Row[*tuple[Any, ...]]]:
    """The columns of the runs; of one that cannot be read, what can."""
    columns = (Run.id, Run.slug, Run.title, Run.model_name, Run.state, Run.kind, Run.pinned)
    all_columns = select(*columns, Run.prompt_tokens, Run.created_at, Run.note)
    try:
        return {row.id: row for row in session.execute(all_columns.where(Run.id.in_(keys)))}
    except SPOILT:
        if len(keys) > 1:  # the others are whole
            return {key: row for each in keys for key, row in _rows(session, [each]).items()}
    unknown = (
        literal(None).label("prompt_tokens"),
        literal(UNKNOWN, UtcDateTime).label("created_at"),
    )
    rows = session.execute(select(*columns, *unknown, Run.note).where(Run.id.in_(keys)))
    return {row.id: row for row in rows}


def _asked(session: Session, key: int) -> tuple[str, ...]:
    """The variants of a run that has none yet, as asked; none where that cannot be read."""
    try:
        variants = session.scalars(select(Run.request).where(Run.id == key)).one()["variants"]
        return tuple(map(str, variants))
    except SPOILT:
        return ()


def _of_samples(session: Session, key: int) -> tuple[tuple[str, ...], ResultCounts | None]:
    """The points of a run of many samples, and how far it is; nothing where that is spoilt."""
    try:
        row = session.execute(select(Run.request, Run.title).where(Run.id == key)).one()
        study = study_of(row.request, row.title)
        return tuple(p.spec for p in study.points()), count_results(session, key, study)
    except SPOILT:
        return (), None


def _outcomes(session: Session, keys: Sequence[int], failed: Sequence[int]) -> dict[int, Tally]:
    """Counted by the database, as `outcomes.tally` does: a sweep has hundreds of variants.

    `failed`: runs that failed, and with them what had not finished.
    """
    is_full, outcome = Variant.method == "full", outcome_column(session)
    evicts, stopped = not_(is_full), _stopped(session)
    whether = {
        **{name: and_(evicts, outcome == name) for name in ("answered", "missed", "cut")},
        "same": and_(evicts, Variant.agreement.is_not(None), Variant.first_difference.is_(None)),
        "compared": and_(evicts, Variant.agreement.is_not(None)),
        "failed": and_(evicts, Variant.run_id.in_(failed), stopped.is_(None)),
        "full_cut": and_(is_full, stopped == "length"),
    }
    counts = [func.count(case((is_so, 1))).label(name) for name, is_so in whether.items()]
    full = func.max(case((is_full, outcome))).label("full")
    rows = session.execute(
        select(Variant.run_id, full, *counts)
        .where(Variant.run_id.in_(keys))
        .group_by(Variant.run_id)
    )
    return {row.run_id: record_of(Tally, row, full_cut=row.full_cut > 0) for row in rows}


def _stopped(session: Session) -> ColumnElement[str | None]:
    stopped: ColumnElement[str | None] = Variant.document["stopped"].as_string()
    if session.get_bind().dialect.name != "sqlite":
        return stopped
    return case((func.json_valid(Variant.document) == 1, stopped))  # a spoilt one fails the query


def outcome_column(session: Session) -> ColumnElement[str]:
    """What `VariantResult.outcome` says, of a stored variant; its document is read where needed."""
    found, stopped = Variant.answer_found, _stopped(session)
    return case(
        (found.is_(True), "answered"),
        (and_(found.is_(False), stopped == "length"), "cut"),
        (found.is_(False), "missed"),
        (stopped.is_not(None), "none"),
    )
