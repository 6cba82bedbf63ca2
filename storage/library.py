"""Queries of the library: list, search, annotate, delete. Take a Session, never commit."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Select,
    TextualSelect,
    and_,
    bindparam,
    case,
    column,
    delete,
    false,
    func,
    literal,
    not_,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session

from ckv_core.errors import ConfigError, StorageError
from ckv_core.experiment.study_file import read_name
from ckv_core.records.codec import revived
from ckv_core.records.outcomes import Tally
from ckv_core.records.run_request import MAX_NAME, RunRequest
from storage import audit, usage
from storage.models import (
    ACTIVE_STATES,
    ALIVE,
    OF_SAMPLES,
    SAMPLES,
    SLUG_LENGTH,
    ResultRow,
    Run,
    SampleRow,
    UtcDateTime,
)
from storage.records import (
    NOTE_LIMIT,
    SPOILT,
    ResultCounts,
    RunFilter,
    RunSort,
    RunSummary,
    record_of,
)
from storage.repository import count_results, key_of, missing_run, study_of

TITLE_LIMIT = 200
_RESULTS_AT_ONCE = 1000  # that are removed; samples have long texts
_SAMPLES_AT_ONCE = 50
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
NOT_OVER = "This run is not over; cancel it first, then delete it."
_KEYS: dict[RunSort, ColumnElement[Any]] = {
    "newest": Run.created_at.desc(),
    "oldest": Run.created_at.asc(),
    "title": func.lower(Run.title),
}
SORTS: tuple[RunSort, ...] = tuple(_KEYS)
# What `VariantResult.outcome` is, of a stored one that has not failed.
_outcome: ColumnElement[str] = case(
    (ResultRow.answer_found.is_(True), "answered"),
    (and_(ResultRow.answer_found.is_(False), ResultRow.stopped == "length"), "cut"),
    (ResultRow.answer_found.is_(False), "missed"),
    (ResultRow.stopped.is_not(None), "none"),
)


# --- reading ----------------------------------------------------------------------------


def list_runs(
    session: Session,
    wanted: RunFilter | None = None,
    sort: RunSort = "newest",
    limit: int = 50,
    offset: int = 0,
) -> tuple[list[RunSummary], int]:
    """One page of the runs that pass the filter, and how many pass."""
    conditions = _conditions(session, wanted or RunFilter())
    total = session.scalar(select(func.count(Run.id)).where(*conditions)) or 0
    if total <= offset:
        return [], total
    # Keys first, so that sorting moves no wide row.
    order = (_KEYS[sort], Run.id.asc() if sort == "oldest" else Run.id.desc())
    keys = session.scalars(
        select(Run.id).where(*conditions).order_by(*order).limit(limit).offset(offset)
    ).all()
    return _summaries(session, keys), total


def summary(session: Session, slug: str) -> RunSummary:
    """One run that is not deleted; RunMissingError if there is none."""
    return _summaries(session, [key_of(session, slug)])[0]


def choices(session: Session, owner: str | None = None) -> dict[str, list[str]]:
    """The models and methods that can be filtered by; of one owner's runs if given."""
    owned = _owned_by(owner)
    runs = select(Run.id).where(*owned)
    methods = select(ResultRow.method.label("name")).distinct().subquery()
    statements = {
        "models": select(Run.model_name).where(ALIVE, *owned).order_by(Run.model_name),
        "methods": select(methods.c.name).order_by(methods.c.name),
    }
    if owned:
        # One look-up a method: an owner may have very many results.
        of_owner = select(ResultRow.id).where(
            ResultRow.method == methods.c.name, ResultRow.run_id.in_(runs)
        )
        statements["methods"] = statements["methods"].where(of_owner.exists())
    return {
        name: list(session.scalars(each.distinct().limit(200))) for name, each in statements.items()
    }


# --- runs that nobody owns, once there are logins -----------------------------------------

_OF_NOBODY = Run.owner.is_(None)


def count_of_nobody(session: Session) -> int:
    """How many runs have no owner, those that are deleted included."""
    return session.scalar(select(func.count()).where(_OF_NOBODY)) or 0


def are_runs_of_nobody(session: Session) -> bool:
    """Whether a run that is not deleted has no owner."""
    return session.scalar(select(Run.id).where(_OF_NOBODY, ALIVE).limit(1)) is not None


def take_over(session: Session, owner: str, actor: str | None) -> int:
    """Give every run without an owner to a user; returns how many there were.

    A run of many samples whose name the user has already is then called by its name and its slug.
    """
    own = select(Run.title).where(OF_SAMPLES, Run.owner == owner)
    doubled = select(Run).where(OF_SAMPLES, _OF_NOBODY, Run.title.in_(own))
    for run in session.scalars(doubled).all():
        run.title = f"{run.title[: MAX_NAME - SLUG_LENGTH - 1]} {run.slug}"
    session.flush()
    taken = update(Run).where(_OF_NOBODY).values(owner=owner).returning(Run.id)
    count = len(session.scalars(taken).all())
    if count:
        audit.record(session, actor, "took over", owner)
    return count


# --- lines of a list ---------------------------------------------------------------------


def _summaries(session: Session, keys: Sequence[int]) -> list[RunSummary]:
    """The runs of these keys, in their order."""
    by_key, found = _rows(session, keys), []
    of_one = [key for key, row in by_key.items() if row.kind != SAMPLES]
    variants = select(ResultRow.run_id, ResultRow.variant).order_by(ResultRow.position)
    specs = _by_run(session, variants, of_one)
    failed = [key for key, row in by_key.items() if row.state == "failed"]
    outcomes = _outcomes(session, of_one, failed)
    for key in keys:
        row, own, counts = by_key[key], specs.get(key, ()), None
        if not own:
            own, counts = _points(session, key, row.kind)
        others = {"variant_specs": own, "outcome": outcomes.get(key, Tally()), "counts": counts}
        found.append(record_of(RunSummary, row, **others))
    return found


def _by_run(
    session: Session, selected: Select[int, str], keys: Sequence[int]
) -> dict[int, tuple[str, ...]]:
    """What is selected, a run and a text, by run."""
    found: dict[int, tuple[str, ...]] = {}
    run_id = selected.selected_columns[0]
    for key, value in session.execute(selected.where(run_id.in_(keys))):
        found[key] = (*found.get(key, ()), value)
    return found


def _rows(session: Session, keys: Sequence[int]) -> dict[int, Row[*tuple[Any, ...]]]:
    """The columns of the runs; of one that cannot be read, what can."""
    columns = (Run.id, Run.slug, Run.title, Run.model_name, Run.state, Run.kind)
    all_columns = select(*columns, Run.prompt_tokens, Run.created_at, Run.note)
    try:
        return {row.id: row for row in session.execute(all_columns.where(Run.id.in_(keys)))}
    except SPOILT:
        if len(keys) > 1:  # the others are whole
            return {key: row for each in keys for key, row in _rows(session, [each]).items()}
    unknown = (
        literal(None).label("prompt_tokens"),
        literal(_LONG_AGO, UtcDateTime).label("created_at"),
    )
    rows = session.execute(select(*columns, *unknown, Run.note).where(Run.id.in_(keys)))
    return {row.id: row for row in rows}


def _points(session: Session, key: int, kind: str) -> tuple[tuple[str, ...], ResultCounts | None]:
    """The SPECs that a run is to have, and how far one of many samples is; nothing if spoilt."""
    try:
        request, title = session.execute(select(Run.request, Run.title).where(Run.id == key)).one()
        if kind != SAMPLES:
            return tuple(spec.spec for spec in revived(RunRequest, request).specs), None
        study = study_of(request, title)
        return tuple(p.spec for p in study.points()), count_results(session, key, study)
    except SPOILT:
        return (), None


def _outcomes(session: Session, keys: Sequence[int], failed: Sequence[int]) -> dict[int, Tally]:
    """What `outcomes.tally` counts, by run; in `failed` runs what had not finished failed too."""
    is_full, evicts = ResultRow.method == "full", ResultRow.method != "full"
    has_agreement = ResultRow.agreement.is_not(None)
    whether = {
        **{name: and_(evicts, _outcome == name) for name in ("answered", "missed", "cut")},
        "same": and_(evicts, has_agreement, ResultRow.first_difference.is_(None)),
        "compared": and_(evicts, has_agreement),
        "failed": and_(evicts, ResultRow.run_id.in_(failed), ResultRow.stopped.is_(None)),
        "full_cut": and_(is_full, ResultRow.stopped == "length"),
    }
    counts = [func.count(case((is_so, 1))).label(name) for name, is_so in whether.items()]
    full = func.max(case((is_full, _outcome))).label("full")
    rows = session.execute(
        select(ResultRow.run_id, full, *counts)
        .where(ResultRow.run_id.in_(keys))
        .group_by(ResultRow.run_id)
    )
    return {row.run_id: record_of(Tally, row, full_cut=row.full_cut > 0) for row in rows}


# --- writing ----------------------------------------------------------------------------


def annotate(session: Session, slug: str, title: str, note: str) -> None:
    """Set a run's title and note.

    Raises:
        StorageError: one of them is not allowed, or there is no such run.
    """
    title = title.strip()
    if not 0 < len(title) <= TITLE_LIMIT:
        raise StorageError(f"A title needs 1 to {TITLE_LIMIT} characters; this has {len(title)}.")
    if len(note) > NOTE_LIMIT:
        raise StorageError(
            f"A note takes up to {NOTE_LIMIT:,} characters; this has {len(note):,}. Shorten it."
        )
    run_id = _living_keys(session, [slug])[0]
    _check_name(session, run_id, title)
    with usage.counted(session, run_id, Run, Run.id == run_id):
        session.execute(update(Run).where(Run.id == run_id).values(title=title, note=note))
    index_run(session, run_id)


def delete_runs(session: Session, slugs: Sequence[str], now: datetime) -> None:
    """Take runs out of sight until they are restored or purged.

    The caller knows that those of one sample are over.

    Raises:
        StorageError: one does not exist, or has many samples and is not over; then none is deleted.
    """
    keys = _living_keys(session, slugs)
    active = select(Run.id).where(Run.id.in_(keys), OF_SAMPLES, Run.state.in_(ACTIVE_STATES))
    if session.scalar(active.limit(1)) is not None:
        raise StorageError(NOT_OVER)
    session.execute(update(Run).where(Run.id.in_(keys)).values(deleted_at=now))


def restore_runs(
    session: Session, slugs: Sequence[str], deleted_after: datetime, owner: str | None = None
) -> list[str]:
    """Undo a deletion that came after the given moment; returns what came back.

    Other owners' runs stay as they are if an owner is given, and so does what an import has not
    finished: it is marked as deleted at a time to come.

    Raises:
        StorageError: the name of a run of many samples is another's by now; nothing came back.
    """
    columns = (Run.id, Run.slug, Run.title)
    statement = select(*columns).where(Run.slug.in_(slugs), Run.deleted_at > deleted_after)
    statement = statement.where(Run.deleted_at <= datetime.now(UTC), *_owned_by(owner))
    statement = statement.order_by(Run.id)
    rows = session.execute(statement.with_for_update()).all()  # none that is purged meanwhile
    for row in rows:
        _check_name(session, row.id, row.title)
        session.execute(update(Run).where(Run.id == row.id).values(deleted_at=None))
    return [row.slug for row in rows]


def purge_deleted(
    session: Session, deleted_until: datetime, slugs: Sequence[str] | None = None
) -> int:
    """Remove for good what was deleted up to the given moment; returns how many runs it looked at.

    One run, or a part of one with many samples, as that takes a part of a second: the caller
    repeats it until it is 0. Only one of these runs if slugs are given.
    """
    old = select(Run.id).where(Run.deleted_at <= deleted_until).limit(1)
    if slugs is not None:
        old = old.where(Run.slug.in_(slugs))
    keys = session.scalars(old.with_for_update(skip_locked=True)).all()  # others hold the rest
    for run_id in keys:
        if not _purge_part(session, run_id):
            forget_run(session, run_id)
            session.execute(delete(Run).where(Run.id == run_id))
    return len(keys)


def _purge_part(session: Session, run_id: int) -> bool:
    """Remove results and samples of a run; whether there may be more of them."""
    for key, of_run, most in (
        (ResultRow.id, ResultRow.run_id == run_id, _RESULTS_AT_ONCE),
        (SampleRow.position, SampleRow.run_id == run_id, _SAMPLES_AT_ONCE),
    ):
        keys = session.scalars(select(key).where(of_run).limit(most)).all()
        session.execute(delete(key.class_).where(of_run, key.in_(keys)))
        if len(keys) == most:
            # What is left of it cannot be restored.
            session.execute(update(Run).where(Run.id == run_id).values(deleted_at=_LONG_AGO))
            return True
    return False


# --- parts ------------------------------------------------------------------------------


def _owned_by(owner: str | None) -> list[ColumnElement[bool]]:
    return [] if owner is None else [Run.owner == owner]


def _conditions(session: Session, wanted: RunFilter) -> list[ColumnElement[bool]]:
    equal = {
        Run.model_name: wanted.model,
        Run.state: wanted.state,
        Run.kind: wanted.kind,
        Run.owner: wanted.owner,
    }
    conditions = [ALIVE, *(column == value for column, value in equal.items() if value)]
    if wanted.text.strip():
        matching = matching_runs(session, wanted.text)
        conditions.append(false() if matching is None else Run.id.in_(matching))
    if wanted.since:
        conditions.append(Run.created_at >= wanted.since)
    if wanted.until:
        conditions.append(Run.created_at < wanted.until)
    return conditions + _result_conditions(wanted)


def _result_conditions(wanted: RunFilter) -> list[ColumnElement[bool]]:
    evicts = ResultRow.method != "full"
    lost = _has_result(evicts, _outcome == "missed")
    answers = {"kept": [_has_result(evicts, _outcome == "answered"), not_(lost)], "lost": [lost]}
    of_method = [_has_result(ResultRow.method == wanted.method)] if wanted.method else []
    return of_method + answers.get(wanted.answer, [])


def _has_result(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    # EXISTS stops at a run's first such result; for a constant, SQLite reads an index alone.
    return select(literal(1)).where(ResultRow.run_id == Run.id, *conditions).exists()


def _check_name(session: Session, run_id: int, title: str) -> None:
    """StorageError for a run of many samples with a name that it cannot have, or another has."""
    statement = select(Run.owner).where(Run.id == run_id, OF_SAMPLES)
    own = session.execute(statement).one_or_none()
    if own is None:
        return
    try:
        read_name(title, "title")
    except ConfigError as error:
        raise StorageError(str(error)) from error
    same = (OF_SAMPLES, ALIVE, Run.owner == own.owner, Run.title == title, Run.id != run_id)
    if session.scalar(select(Run.id).where(*same)) is not None:
        raise StorageError(
            f"Another run of many samples is called {title!r}; rename or delete that one first."
        )


def _living_keys(session: Session, slugs: Sequence[str]) -> list[int]:
    living = select(Run.slug, Run.id).where(Run.slug.in_(set(slugs)), ALIVE).order_by(Run.id)
    keys = {row.slug: row.id for row in session.execute(living.with_for_update())}  # others wait
    for slug in slugs:
        if slug not in keys:
            raise missing_run(slug)
    return list(keys.values())


# --- full-text search -------------------------------------------------------------------

# Words are cut here, not by the database, so that SQLite (FTS5) and PostgreSQL (tsvector) index the
# same words and find the same runs. Both tables are called run_search and are made by a migration;
# they are no mapped classes, because only the column of words is alike.

# Per run. A tsvector must stay under 1 MiB, and folding makes up to 18 characters of one.
INDEXED_CHARS = 200_000
INDEXED_BYTES = 900_000
WORD_CHARS = 60
QUERY_CHARS = 400
QUERY_WORDS = 16
_WORD = re.compile(r"[^\W_]+")

_STATEMENTS = {
    "sqlite": {
        "forget": "DELETE FROM run_search WHERE rowid = :run_id",
        "index": "INSERT INTO run_search (rowid, words) VALUES (:run_id, :words)",
        "match": "SELECT rowid AS run_id FROM run_search WHERE run_search MATCH :query",
    },
    "postgresql": {
        "forget": "DELETE FROM run_search WHERE run_id = :run_id",
        "index": "INSERT INTO run_search (run_id, words) "
        "VALUES (:run_id, array_to_tsvector(string_to_array(:words, ' ')))",
        "match": "SELECT run_id FROM run_search WHERE words @@ CAST(:query AS tsquery)",
    },
}


def words_of(source: str) -> list[str]:
    """Runs of letters and digits, case and compatibility forms folded, each cut to 60."""
    folded = unicodedata.normalize("NFKC", source).casefold()
    return [word[:WORD_CHARS] for word in _WORD.findall(folded)]


def index_run(session: Session, run_id: int) -> None:
    """Write the words of a run's title, note, question and generations as they now are.

    Of a run of many samples, title and note alone.
    """
    of_one = (Run.id == run_id, ~OF_SAMPLES)
    questions = select(SampleRow.question).join(Run, Run.id == SampleRow.run_id).where(*of_one)
    generated = select(ResultRow.text).join(Run, Run.id == ResultRow.run_id).where(*of_one)
    title, note = session.execute(select(Run.title, Run.note).where(Run.id == run_id)).one()
    texts = session.scalars(generated.order_by(ResultRow.position))
    source = "\n".join([title, note, *session.scalars(questions), *texts])[:INDEXED_CHARS]
    words = " ".join(sorted(_that_fit(words_of(source))))
    forget_run(session, run_id)
    session.execute(text(_statement(session, "index")), {"run_id": run_id, "words": words})


def forget_run(session: Session, run_id: int) -> None:
    """Remove a run's words; a later run may get its key on SQLite."""
    session.execute(text(_statement(session, "forget")), {"run_id": run_id})


def matching_runs(session: Session, query: str) -> TextualSelect | None:
    """Keys of runs that have all words of a query, the last one as a beginning.

    Any text is a query; beyond 400 characters or 16 words it is cut. None if it has no word.
    """
    words = words_of(query[:QUERY_CHARS])[:QUERY_WORDS]
    if not words:
        return None
    # Words are letters and digits only, so quotes cannot be closed from inside.
    if session.get_bind().dialect.name == "sqlite":
        expression = " ".join(f'"{word}"' for word in words) + "*"
    else:
        expression = " & ".join(f"'{word}'" for word in words) + ":*"
    statement = text(_statement(session, "match")).bindparams(bindparam("query", expression))
    return statement.columns(column("run_id", BigInteger))


def _that_fit(words: Iterable[str]) -> list[str]:
    """Each word once, the first ones as far as there is room."""
    room, fitting = INDEXED_BYTES, []
    for word in dict.fromkeys(words):
        room -= len(word.encode())
        if room < 0:
            break
        fitting.append(word)
    return fitting


def _statement(session: Session, name: str) -> str:
    return _STATEMENTS[session.get_bind().dialect.name][name]
