"""Runs as one file to take along: a zip with one JSON for each run, written and read.

What is read may be damaged or hostile: reading is bounded, no path is taken from the file, a large
one is read in a process of its own, and all of it or nothing is stored. A file that is no zip is
one result JSON. docs/how-to/share.md describes the format.
"""

import base64
import hashlib
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from ckv_core.base.checked import read, wrong
from ckv_core.base.json_text import JsonBounds, NoJsonError
from ckv_core.base.read_apart import SMALL_BYTES, Data, TooMuchError, read_apart
from ckv_core.errors import ConfigError, StorageError
from ckv_core.records.codec import from_json, record_json, to_json
from ckv_core.records.events import FloorMeasured, RunEvent, RunFinished, RunPrepared, RunResult
from ckv_core.records.external_selection import MAX_TEXT_CHARS, own_to_json
from ckv_core.records.grid import at_points
from ckv_core.records.run_request import RunRequest
from storage import audit, library, recorder, repository
from storage.database import Database
from storage.models import END_STATES, SLUG_LENGTH, Run
from storage.recorder import first_words
from storage.records import SLUG, RunNotes, StoredRun
from storage.usage import usage_of

MAX_RUNS = 1000
MAX_RUN_BYTES = 64 * 2**20  # of one run's JSON
MAX_TOTAL_BYTES = 512 * 2**20
IMPORTED = "imported"  # key in the environment of a run that was not made here
FROM_RESULT = "a result file; its question is not known"  # the end of its value
# Members of a run that do not leave the app.
OF_THIS_APP: dict[str, Any] = dict.fromkeys(("owner", "server", "counts"))
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class BundledRun:
    """A run and what else a bundle has of it."""

    run: StoredRun
    notes: RunNotes = field(default_factory=RunNotes)


def write_bundle(
    session: Session, slugs: Sequence[str], without_notes: Collection[str] = ()
) -> bytes:
    """A zip of these runs; the same runs give the same bytes.

    `without_notes`: those whose notes stay here.

    Raises:
        StorageError: none or too many chosen, one is missing, not over or too big.
    """
    count = len(set(slugs))
    if not 1 <= count <= MAX_RUNS:
        raise StorageError(f"A bundle takes 1 to {MAX_RUNS} runs; got {count}.")
    bundles = write_bundles(session, slugs, without_notes=without_notes)
    written, data = next(bundles)
    if written < count:
        raise _too_big([*dict.fromkeys(slugs)][written])
    return data


def write_bundles(
    session: Session,
    slugs: Sequence[str],
    leave_out: Callable[[StorageError], None] | None = None,
    without_notes: Collection[str] = (),
) -> Iterator[tuple[int, bytes]]:
    """As many zips as these runs need, each with how many runs it has, in the order given.

    `leave_out`: gets the reason for each run that is spoilt, missing, not over or too big; without
    it that is an error.
    """
    writer = _Writer()
    try:
        for slug in dict.fromkeys(slugs):
            try:
                data = _run_data(session, slug, with_notes=slug not in without_notes)
            except StorageError as error:
                if leave_out is None:
                    raise
                leave_out(error)
                continue
            if not writer.has_room(data):
                yield writer.count, writer.finish()
                writer = _Writer()
            writer.add(slug, data)
        if writer.count:
            yield writer.count, writer.finish()
    finally:
        writer.finish()


class _Writer:
    """One zip as it grows."""

    def __init__(self) -> None:
        self.count = self._total = 0
        self._out = io.BytesIO()
        self._archive = zipfile.ZipFile(self._out, "w", zipfile.ZIP_DEFLATED)

    def has_room(self, data: bytes) -> bool:
        return self.count < MAX_RUNS and self._total + len(data) <= MAX_TOTAL_BYTES

    def add(self, slug: str, data: bytes) -> None:
        entry = zipfile.ZipInfo(entry_name(slug), _EPOCH)
        self._archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        self._total += len(data)
        self.count += 1

    def finish(self) -> bytes:
        self._archive.close()
        return self._out.getvalue()


def _run_data(session: Session, slug: str, *, with_notes: bool) -> bytes:
    run = repository.load_run(session, slug)
    if run.state not in END_STATES:
        raise StorageError(f"Run {slug} is not over; export it once it is.")
    values = run_json(run)
    if with_notes:
        values |= record_json(repository.load_notes(session, slug))
    data = json.dumps(values, allow_nan=False, default=datetime.isoformat).encode()
    if len(data) > MAX_RUN_BYTES:
        raise _too_big(slug)
    return data


def _too_big(slug: str) -> StorageError:
    return StorageError(
        f"Run {slug} is too big for this bundle. One run takes up to "
        f"{MAX_RUN_BYTES // 2**20} MiB of JSON, all together "
        f"{MAX_TOTAL_BYTES // 2**20} MiB; export fewer runs at a time."
    )


def entry_name(slug: str) -> str:
    """The only name under which a run may stand in a bundle."""
    return f"runs/{slug}.json"


def run_json(run: StoredRun) -> dict[str, Any]:
    """Everything that is stored of a run, as plain JSON values but for its times."""
    request = record_json(run.request) | {"own_indices": own_to_json(run.request.own_indices)}
    values = record_json(run, leave_out=("request", "result", *OF_THIS_APP))
    return values | {"request": request, "result": to_json(run.result)}


# --- read, and stored all or none -------------------------------------------------------


LISTED = 5
# An import that is killed leaves runs that are purged once this has passed.
STAGED = timedelta(days=1)
STAGED_UNTIL = datetime.max.replace(tzinfo=UTC)
UNFINISHED = "The imported file holds a run that did not end."
# The largest run that can be exported has 10 million positions in half a million rows.
BOUNDS = JsonBounds(containers=2**20, values=2**24)
ZIP_SIGN = b"PK"
_NAME = re.compile(rf"runs/({SLUG})\.json", re.ASCII)
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


@contextmanager
def reading(data: bytes) -> Iterator[Iterable[BundledRun]]:
    """The runs of a hostile zip, JSON text, or JSON a line, all checked; to be gone through once.

    Of a large file one run at a time is in memory. StorageError if it is wrong, or takes too much.
    """
    if _is_small(data):
        yield list(runs_of(data))
        return
    try:
        with read_apart(runs_of, data) as runs:
            yield runs
    except TooMuchError as error:
        _refuse(str(error)[0].lower() + str(error)[1:-1])
    except OSError as error:
        _refuse(f"the server cannot keep it for reading ({error.strerror})")


def runs_of(data: Data) -> Iterator[BundledRun]:
    """The runs of a file, one by one; raises as `reading`."""
    data = data.encode() if isinstance(data, str) else data
    try:
        if not data.startswith(ZIP_SIGN):
            yield _read_result(data)
            return
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from _read_archive(archive)
    except NoJsonError as error:
        _refuse(f"a file in it is not valid JSON ({error})")
    except ConfigError as error:
        _refuse(str(error).rstrip("."))
    except _ZIP_ERRORS:
        _refuse("it is not a whole zip file")


def _is_small(data: bytes) -> bool:
    """Whether it has at most SMALL_BYTES, packed and unpacked."""
    if len(data) > SMALL_BYTES:
        return False
    if not data.startswith(ZIP_SIGN):
        return True
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            # No more than that is unpacked, whatever there is.
            return sum(entry.file_size for entry in archive.infolist()) <= SMALL_BYTES
    except Exception:
        return True  # the reader knows what is wrong with it


def _refuse(reason: str) -> NoReturn:
    raise StorageError(f"The file was refused, nothing was imported: {reason}.")


# --- bundles ----------------------------------------------------------------------------


def _read_archive(archive: zipfile.ZipFile) -> Iterator[BundledRun]:
    entries, total = archive.infolist(), 0
    if not 1 <= len(entries) <= MAX_RUNS or len({each.filename for each in entries}) < len(entries):
        _refuse(f"it has no run, a name twice, or more than {MAX_RUNS:,} runs")
    for entry in entries:
        if (named := _NAME.fullmatch(entry.filename)) is None:
            _refuse("a file in it is no run, which is called runs/SLUG.json")
        text = _read(archive, entry)
        total += len(text)
        if total > MAX_TOTAL_BYTES:
            _refuse(f"it holds more than {MAX_TOTAL_BYTES // 2**20} MiB")
        yield _bundled(BOUNDS.read(text), named[1])


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """One entry, never more of it than one run may have, whatever its header declares."""
    if entry.file_size > MAX_RUN_BYTES:
        _refuse(f"a file in it is over {MAX_RUN_BYTES // 2**20} MiB")
    with archive.open(entry) as file:
        text = file.read(MAX_RUN_BYTES + 1)
    if len(text) != entry.file_size:
        _refuse("a file in it is not as long as it declares")
    return text


def _bundled(document: object, slug: str) -> BundledRun:
    run = read(StoredRun, document, "run")
    if run.slug != slug:
        raise wrong("run", ("slug",), f"{slug} is expected", run.slug)
    if run.state not in END_STATES:
        raise wrong("run", ("state",), f"one of {', '.join(END_STATES)} is expected", run.state)
    _check_variants(run.result)
    return BundledRun(replace(run, **OF_THIS_APP), read(RunNotes, document, "run"))


def _check_variants(result: RunResult) -> None:
    if len({variant.spec for variant in result.variants}) < len(result.variants):
        raise ConfigError("Two of its variants have the same SPEC.")


# --- files of results -------------------------------------------------------------------


def _read_result(data: bytes) -> BundledRun:
    """The run of a result file, which has the same slug each time.

    The result does not have the question and the settings as typed: the context is read from the
    tokens' texts.
    """
    if len(data) > MAX_RUN_BYTES:
        _refuse(f"a result takes up to {MAX_RUN_BYTES // 2**20} MiB")
    try:
        result = from_json(BOUNDS.read(data))
    except NoJsonError as error:
        _refuse(f"it is neither a bundle nor a result JSON ({error})")
    _check_variants(result)
    if result.model is None or result.prompt is None:
        _refuse("it has no model and prompt, so there is nothing to show")
    result.environment = {**result.environment, IMPORTED: FROM_RESULT}
    begin, end = result.prompt.context_tokens
    request = RunRequest(
        context="".join(result.prompt.pieces[begin:end]),
        scenario=result.prompt.scenario,
        model=result.model.name,
        variants=tuple(variant.spec for variant in result.variants),
        max_new_tokens=max((len(variant.token_ids) for variant in result.variants), default=0),
    )
    if result.kind == "sweep":
        request = at_points(request, request.variants)
    if len(request.context) > MAX_TEXT_CHARS:
        _refuse(f"its text has over {MAX_TEXT_CHARS:,} characters")
    run = StoredRun(
        slug=base64.b32encode(hashlib.sha256(data).digest()).decode().lower()[:SLUG_LENGTH],
        title=first_words(request.context) or "Imported result",
        state="done" if result.finished else "failed",
        reason="" if result.finished else UNFINISHED,
        created_at=datetime.now(UTC),
        request=request,
        result=result,
    )
    return BundledRun(run)


# --- storing ----------------------------------------------------------------------------


@dataclass(slots=True)
class ImportReport:
    """The outcome of an import.

    Attributes:
        imported: slugs of the new runs as they are here.
        renamed: slug in the bundle -> slug here, where another run has that slug already.
        skipped: slugs of what the importer has already.
    """

    imported: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """Say to the user how many runs came, and which did not."""
        count = len(self.imported) + len(self.skipped)
        parts = [f"Imported {len(self.imported)} of {count} {'run' if count == 1 else 'runs'}"]
        if self.skipped:
            parts.append(f"already here: {_listed(self.skipped)}")
        if self.renamed:
            names = [f"{old} is {new} here" for old, new in self.renamed.items()]
            parts.append(f"other runs have the same name, so {_listed(names)}")
        return f"{'; '.join(parts)}."


def import_bundle(
    database: Database,
    data: bytes,
    owner: str | None = None,
    most: int | None = None,
    most_bytes: int | None = None,
    *,
    actor: str | None = None,
) -> ImportReport:
    """Store the runs of a hostile bundle or file of results, which appear all at once.

    Each run is written in a transaction of its own, out of sight: one over all of them would hold
    SQLite's lock for a minute, and fail what others run meanwhile.

    `most`: runs of that owner, or of all without one, that may be saved in the end. `most_bytes`:
    of what is imported, as it is stored. `actor`: the user who imports, for the audit log.

    Raises:
        StorageError: the file is wrong, the runs are too many or the database failed; nothing of
            it was stored.
    """
    done = _Import(database, owner)
    try:
        with reading(data) as runs:
            for each in runs:
                done.store(each)
        with database.write() as session:
            done.show(session, most, most_bytes, actor)
    except BaseException:
        with suppress(StorageError):  # the purge forgets what is left
            for slug in done.report.imported:
                with database.write_in_turn() as session:
                    library.purge_deleted(session, STAGED_UNTIL, [slug])
        raise
    return done.report


class _Import:
    """The runs of one file on their way into the library, for one owner."""

    def __init__(self, database: Database, owner: str | None) -> None:
        self.report = ImportReport()
        self._database = database
        self._owner = owner

    def store(self, bundled: BundledRun) -> None:
        """Store a run out of sight, as one that is deleted, unless the importer has it."""
        run, report = bundled.run, self.report
        with self._database.write_in_turn() as session:
            taken = session.execute(select(Run.owner, Run.deleted_at).where(Run.slug == run.slug))
            other = taken.one_or_none()  # somebody else's is of no use to the importer
            if other and not other.deleted_at and self._owner in (None, other.owner):
                report.skipped.append(run.slug)
                return
            slug = self._save(session, bundled, is_taken=other is not None)
            report.imported.append(slug)
            if other is not None:
                report.renamed[run.slug] = slug

    def _save(self, session: Session, bundled: BundledRun, *, is_taken: bool) -> str:
        """Write all of a run; returns its slug here."""
        run, result = bundled.run, bundled.run.result
        was_result = str(result.environment.get(IMPORTED, "")).endswith(FROM_RESULT)
        source = FROM_RESULT if was_result else "a bundle"
        now = datetime.now(UTC)
        named: dict[str, Any] = {} if is_taken else {"slug": run.slug}
        slug = recorder.create_run(
            session,
            run.request,
            run.title,
            run.created_at,
            owner=self._owner,
            note=bundled.notes.note,
            started_at=run.started_at,
            deleted_at=now + STAGED,
            **named,
        )
        run_id = session.scalars(select(Run.id).where(Run.slug == slug)).one()
        environment = {**result.environment, IMPORTED: f"{now:%Y-%m-%d} from {source}"}
        events: list[RunEvent] = []
        if result.model is not None and result.prompt is not None:
            variants, memory = tuple(result.variants), result.memory
            made = (result.model, result.prompt, variants, environment, result.kind, memory)
            events.append(RunPrepared(*made))
        events += [FloorMeasured(result.floor)] if result.floor is not None else []
        events += [RunFinished(result.timings_ms)] if result.finished else []
        for event in events:
            recorder.save_event(session, run_id, event)
        known = {"timings_ms": dict(result.timings_ms), "kind": result.kind}
        values = {"environment": environment, **known}
        session.execute(update(Run).where(Run.id == run_id).values(values))
        recorder.end_run(session, run_id, run.state, run.reason, run.finished_at or run.created_at)
        return slug

    def show(
        self, session: Session, most: int | None, most_bytes: int | None, actor: str | None
    ) -> None:
        """Have the imported runs in the library, all at once."""
        slugs = self.report.imported
        if not slugs:
            return
        of_runs = Run.slug.in_(slugs)
        size = int(session.scalar(select(func.sum(Run.stored_bytes)).where(of_runs)) or 0)
        if most_bytes is not None and size > most_bytes:
            raise StorageError(
                f"Nothing was imported: its runs take {size / 2**20:,.1f} MiB, and this app has "
                f"room for {most_bytes / 2**20:,.1f}; delete runs or kept caches first."
            )
        if most is not None and usage_of(session, self._owner).runs + len(slugs) > most:
            raise StorageError(
                f"Nothing was imported: {len(slugs):,} more would make over {most:,} "
                "saved runs, which is this app's limit; delete some or import fewer."
            )
        session.execute(update(Run).where(of_runs).values(deleted_at=None))
        audit.record(session, actor, "imported", *slugs)


def _listed(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more:,} more" if more > 0 else "")
