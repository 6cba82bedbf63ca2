"""Lines of a list of runs: what each was asked, and what came out; no result is decoded."""

from collections.abc import Sequence

from sqlalchemy import and_, case, func, not_, select
from sqlalchemy.orm import Session

from storage.models import Run, Tag, Variant
from storage.records import Outcome, RunSummary, record_of


def summaries(session: Session, keys: Sequence[int]) -> list[RunSummary]:
    """The runs of these keys, in their order."""
    columns = (Run.slug, Run.title, Run.model_name, Run.state, Run.kind, Run.request)
    rows = session.execute(
        select(Run.id, *columns, Run.prompt_tokens, Run.created_at, Run.note, Run.pinned).where(
            Run.id.in_(keys)
        )
    )
    by_key = {row.id: row for row in rows}
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
    outcomes = _outcomes(session, keys)
    return [
        record_of(
            RunSummary,
            by_key[key],
            variant_specs=tuple(specs[key] or by_key[key].request["variants"]),
            tags=tuple(tags[key]),
            outcome=outcomes.get(key, Outcome()),
        )
        for key in keys
    ]


def _outcomes(session: Session, keys: Sequence[int]) -> dict[int, Outcome]:
    """Counted by the database: a sweep has hundreds of variants."""
    evicts = Variant.method != "full"
    whether = {
        "answered": and_(evicts, Variant.answer_found.is_(True)),
        "judged": and_(evicts, Variant.answer_found.is_not(None)),
        "full_answers": and_(not_(evicts), Variant.answer_found.is_(True)),
        "full_judged": and_(not_(evicts), Variant.answer_found.is_not(None)),
        "agreeing": and_(evicts, Variant.agreement == 1, Variant.first_difference.is_(None)),
        "compared": and_(evicts, Variant.agreement.is_not(None)),
    }
    counts = [func.count(case((is_so, 1))).label(name) for name, is_so in whether.items()]
    rows = session.execute(
        select(Variant.run_id, *counts).where(Variant.run_id.in_(keys)).group_by(Variant.run_id)
    )
    return {
        row.run_id: record_of(
            Outcome, row, full_answers=row.full_answers > 0 if row.full_judged else None
        )
        for row in rows
    }
