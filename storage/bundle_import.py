"""Stores the runs of a bundle, or of a file of results: all of them or none."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, insert, or_, select, update
from sqlalchemy.orm import Session

from ckv_core.errors import StorageError
from ckv_core.results.events import FloorMeasured, RunFinished, RunPrepared
from storage import audit, library, recorder, repository
from storage.bundle import FROM_RESULT, IMPORTED, BundledRun, is_same_content
from storage.database import Database
from storage.import_reader import reading
from storage.models import ALIVE, Run, Tag
from storage.records import Lineage
from storage.usage import saved_runs

LISTED = 5
LINKED_AT_ONCE = 50
# An import that is killed leaves runs that are purged once this has passed.
STAGED = timedelta(days=1)
STAGED_UNTIL = datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True)
class ImportReport:
    """What an import did.

    Attributes:
        imported: slugs of the new runs as they are here.
        renamed: slug in the bundle -> slug here, where another run has that slug already.
        skipped: slugs that are here already, with the same content.
    """

    imported: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """What the user reads."""
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
    """Check a whole bundle or file of results, then store its runs, which appear all at once.

    Each run is written in a transaction of its own, out of sight: one over all of them would hold
    SQLite's lock for a minute, and fail what others run meanwhile.

    `data`: a zip, a JSON text or one a line, from anybody. `most`: runs of that owner, or of all
    without one, that may be saved in the end. `most_bytes`: of what is imported, as it is stored.
    `actor`: the user who imports, for the audit log.

    Raises:
        StorageError: the file is wrong, the runs are too many or the database failed; nothing of
            it was stored.
    """
    report = ImportReport()
    parents: list[tuple[str, Lineage]] = []
    try:
        with reading(data) as runs:
            for each in runs:
                here = database.ask(_is_here, each, owner)
                with database.write_in_turn() as session:
                    _import_run(session, each, owner, report, is_here=here)
                parents += [(each.run.slug, each.lineage)] if each.lineage else []
        for at in range(0, len(parents), LINKED_AT_ONCE):
            with database.write_in_turn() as session:
                _link(session, parents[at : at + LINKED_AT_ONCE], owner, report)
        with database.write() as session:
            _check_bytes(session, report.imported, most_bytes)
            _show(session, report, owner, most, actor)
    except BaseException:
        _forget(database, report.imported)
        raise
    return report


def _check_bytes(session: Session, slugs: list[str], most: int | None) -> None:
    of_runs = select(func.sum(Run.stored_bytes)).where(Run.slug.in_(slugs))
    size = int(session.scalar(of_runs) or 0)
    if most is not None and size > most:
        raise StorageError(
            f"Nothing was imported: its runs take {size / 2**20:,.1f} MiB, and this app has room "
            f"for {most / 2**20:,.1f}; delete runs or kept caches first."
        )


def _show(
    session: Session, report: ImportReport, owner: str | None, most: int | None, actor: str | None
) -> None:
    """Have the imported runs in the library, all at once."""
    slugs = report.imported
    if most is not None and slugs and saved_runs(session, owner) + len(slugs) > most:
        raise StorageError(
            f"Nothing was imported: {len(slugs):,} more would make over {most:,} "
            "saved runs, which is this app's limit; delete some or import fewer."
        )
    session.execute(update(Run).where(Run.slug.in_(slugs)).values(deleted_at=None))
    if slugs:
        audit.record(session, actor, "imported", *slugs)


def _forget(database: Database, slugs: list[str]) -> None:
    """Remove what an import that failed had stored; where that fails too, the purge does it."""
    with suppress(StorageError):
        for slug in slugs:
            with database.write_in_turn() as session:
                library.purge_deleted(session, STAGED_UNTIL, [slug])


def _import_run(
    session: Session, bundled: BundledRun, owner: str | None, report: ImportReport, *, is_here: bool
) -> None:
    """Store a run out of sight, as one that is deleted, unless the importer has it."""
    run = bundled.run
    is_taken = session.scalar(select(Run.id).where(Run.slug == run.slug)) is not None
    if is_taken and is_here:
        report.skipped.append(run.slug)
        return
    slug = recorder.create_run(session, run.request, run.title, run.created_at, owner)
    run_id = recorder.active_run_id(session, slug)
    if run_id is None:
        raise AssertionError("a run that was just made is active")
    if is_taken:
        report.renamed[run.slug] = slug
    else:
        session.execute(update(Run).where(Run.id == run_id).values(slug=run.slug))
        slug = run.slug
    session.execute(update(Run).where(Run.id == run_id).values(note=bundled.notes.note))
    if tags := sorted(set(bundled.notes.tags)):
        session.execute(insert(Tag), [{"run_id": run_id, "name": name} for name in tags])
    _save_result(session, run_id, bundled)
    recorder.end_run(session, run_id, run.state, run.reason, run.finished_at or run.created_at)
    staged = datetime.now(UTC) + STAGED
    session.execute(update(Run).where(Run.id == run_id).values(deleted_at=staged))
    report.imported.append(slug)


def _link(
    session: Session, parents: list[tuple[str, Lineage]], owner: str | None, report: ImportReport
) -> None:
    """Tell the new runs their parents, those of the file and those that the importer has here."""
    imported = set(report.imported)
    for named, lineage in parents:
        slug = report.renamed.get(named, named)
        if slug not in imported:
            continue
        parent = report.renamed.get(lineage.parent, lineage.parent)
        known = select(Run.id).where(Run.slug == parent, or_(ALIVE, Run.slug.in_(imported)))
        if owner is not None:
            known = known.where(Run.owner == owner)
        if parent != slug and session.scalar(known) is not None:
            session.execute(
                update(Run).where(Run.slug == slug).values(parent_slug=parent, lineage=lineage.kind)
            )


def _is_here(session: Session, bundled: BundledRun, owner: str | None) -> bool:
    """Whether the importer has this run; somebody else's is of no use to them."""
    run = bundled.run
    try:
        if owner is not None and repository.run_owner(session, run.slug) != owner:
            return False
        stored = repository.load_run(session, run.slug)
    except repository.RunMissingError:
        return False  # deleted, but its name is not free yet
    if not bundled.has_times:
        times = ("created_at", "started_at", "finished_at")
        run = replace(run, **{name: getattr(stored, name) for name in times})
    return is_same_content(stored, run)


def _save_result(session: Session, run_id: int, bundled: BundledRun) -> None:
    run, result = bundled.run, bundled.run.result
    # A bundle may hold what another app read from a result file.
    was_result = str(result.environment.get(IMPORTED, "")).endswith(FROM_RESULT)
    source = "a bundle" if bundled.has_times and not was_result else FROM_RESULT
    environment = {**result.environment, IMPORTED: f"{datetime.now(UTC):%Y-%m-%d} from {source}"}
    if result.model is not None and result.prompt is not None:
        prepared = RunPrepared(
            result.model,
            result.prompt,
            tuple(result.variants),
            environment,
            result.kind,
            result.memory,
        )
        recorder.save_event(session, run_id, prepared)
    if result.floor is not None:
        recorder.save_event(session, run_id, FloorMeasured(result.floor))
    if result.finished:
        recorder.save_event(session, run_id, RunFinished(result.timings_ms))
    session.execute(
        update(Run)
        .where(Run.id == run_id)
        .values(
            environment=environment,
            started_at=run.started_at,
            timings_ms=dict(result.timings_ms),
            kind=result.kind,
        )
    )


def _listed(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more:,} more" if more > 0 else "")
