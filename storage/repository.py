"""Queries that read runs. Take a Session, return records, never commit; recorder.py writes."""

import re
import secrets
import string
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVarTuple, cast

from sqlalchemy import Row, Select, func, select
from sqlalchemy.orm import Session

from ckv_core.errors import CkvError, StorageError
from ckv_core.records.codec import revived
from ckv_core.records.events import RunResult
from ckv_core.records.records import ModelInfo, PromptInfo, RetainedSet, RoundingFloor
from ckv_core.records.run_request import Kind, RunRequest
from storage import rows
from storage.models import (
    ACTIVE_STATES,
    ALIVE,
    OF_SAMPLES,
    SLUG_LENGTH,
    Array,
    ResultRow,
    Run,
    SampleRow,
    Tag,
)
from storage.records import SPOILT, RunNotes, StoredRun, record_of

SLUG_ALPHABET = string.ascii_lowercase + string.digits
_SLUG = re.compile(r"[a-z0-9]{6,32}", re.ASCII)
Columns = TypeVarTuple("Columns")

# Row, name, creation and end of a run: all that was recorded before its end.
RunKey = tuple[int, str, datetime, datetime | None]
Decoded = tuple[RunRequest, RunResult]
MOST_DECODED = 96 * 2**20


class RunMissingError(StorageError):
    """No run has that slug (any more)."""


def is_slug(text: object) -> bool:
    """Whether a client's text can name a run at all."""
    return isinstance(text, str) and _SLUG.fullmatch(text) is not None


def new_slug() -> str:
    """A random name for a link."""
    return "".join(secrets.choice(SLUG_ALPHABET) for _ in range(SLUG_LENGTH))


def missing_run(slug: str) -> RunMissingError:
    """What to raise where a run is not there, or not for this user."""
    return RunMissingError(f"There is no run {slug!r}; it may have been deleted.")


# --- reading ----------------------------------------------------------------------------


def load_run(session: Session, slug: str, kept: "DecodedRuns | None" = None) -> StoredRun:
    """A run with everything that was recorded of it.

    The result of a run that is over is looked for, and kept, in `kept`.

    Raises:
        RunMissingError: there is none of that name.
        StorageError: it is spoilt.
    """
    with explained(slug):
        run, sample = _row_of(session, _with_sample(select(Run, SampleRow)), slug)

        def decode() -> Decoded:
            return rows.request_record(run.request, sample), _load_result(session, run, sample)

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


def load_request(session: Session, slug: str) -> RunRequest:
    """The request of a run, its texts too.

    Raises:
        RunMissingError: there is none of that name.
    """
    with explained(slug):
        selected = _with_sample(select(Run.request, SampleRow))
        return rows.request_record(*_row_of(session, selected, slug))


def _with_sample(selected: Select[*Columns]) -> Select[*Columns]:
    return selected.join(SampleRow, SampleRow.run_id == Run.id).where(~OF_SAMPLES)


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
        RunMissingError: there is no such run or variant.
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


# --- parts ------------------------------------------------------------------------------


def _row_of(session: Session, selected: Select[*Columns], slug: str) -> Row[*Columns]:
    """What is selected of a run that is not deleted.

    Raises:
        RunMissingError: there is none of that name, or it has many samples.
    """
    row = session.execute(selected.where(Run.slug == slug, ALIVE)).one_or_none()
    if row is not None:
        return row
    if session.scalar(select(Run.id).where(Run.slug == slug, ALIVE)) is not None:
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
    """The results used last, as many as fit into so many bytes; any thread may call any method.

    What is handed out is shared: nobody changes it.
    """

    def __init__(self, most_bytes: int = MOST_DECODED) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[RunKey, tuple[Decoded, int]] = OrderedDict()

    def once(self, key: RunKey, decode: Callable[[], Decoded]) -> Decoded:
        """A run's request and result: as kept, or decoded, one at a time."""
        with self._lock:
            if key not in self._kept:
                decoded = decode()
                self._kept[key] = decoded, _size(*decoded)
                while self._kept and sum(size for _, size in self._kept.values()) > self._most:
                    self._kept.popitem(last=False)
                return decoded
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def forget(self, slug: str) -> None:
        """Let a run go that is deleted; its name and row may come to be another's."""
        with self._lock:
            for key in [key for key in self._kept if key[1] == slug]:
                del self._kept[key]


def _size(request: RunRequest, result: RunResult) -> int:
    """About how many bytes they take: texts by their characters, a token 100 bytes."""
    tokens = len(result.prompt.token_ids) if result.prompt else 0
    size = 4 * len(request.context) + sum(
        len(row) for own in request.own_indices for layer in own.rows for row in layer or ()
    )
    for variant in result.variants:
        tokens += len(variant.token_ids) + 20 * len(variant.forced_steps)
        size += sum(array.nbytes for array in variant.analysis.values())
        size += len(variant.retained.bits) if variant.retained else 0
        size += len(variant.held.evicted) if variant.held else 0
        size += 3 * variant.perturbation.head_l1.nbytes if variant.perturbation else 0
    return size + 100 * tokens + 5_000 * len(result.variants)
