"""Stores the runs of a bundle, or of a file of results: all of them or none."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from ckv_core.errors import StorageError
from ckv_core.records.events import FloorMeasured, RunEvent, RunFinished, RunPrepared
from storage import audit, library, recorder, repository
from storage.bundle import FROM_RESULT, IMPORTED, BundledRun, is_same_content
from storage.database import Database
from storage.import_reader import reading
from storage.models import ALIVE, Run
from storage.records import Lineage
from storage.usage import usage_of

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
        done.link()
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
        self._parents: list[tuple[str, Lineage]] = []

    def store(self, bundled: BundledRun) -> None:
        """Store a run out of sight, as one that is deleted, unless the importer has it."""
        run, report = bundled.run, self.report
        is_here = self._database.read_with(self._is_here, bundled)
        with self._database.write_in_turn() as session:
            is_taken = session.scalar(select(Run.id).where(Run.slug == run.slug)) is not None
            if is_taken and is_here:
                report.skipped.append(run.slug)
            else:
                slug = self._save(session, bundled, is_taken=is_taken)
                report.imported.append(slug)
                if is_taken:
                    report.renamed[run.slug] = slug
        if bundled.lineage:
            self._parents.append((run.slug, bundled.lineage))

    def _is_here(self, session: Session, bundled: BundledRun) -> bool:
        """Whether the importer has this run; somebody else's is of no use to them."""
        run = bundled.run
        try:
            owner = repository.run_owner(session, run.slug)
            if self._owner not in (None, owner):
                return False
            stored = repository.load_run(session, run.slug)
        except repository.RunMissingError:
            return False  # deleted, but its name is not free yet
        if not bundled.has_times:
            times = ("created_at", "started_at", "finished_at")
            run = replace(run, **{name: getattr(stored, name) for name in times})
        return is_same_content(stored, run)

    def _save(self, session: Session, bundled: BundledRun, *, is_taken: bool) -> str:
        """Write all of a run; returns its slug here."""
        run, result = bundled.run, bundled.run.result
        # A bundle may hold what another app read from a result file.
        was_result = str(result.environment.get(IMPORTED, "")).endswith(FROM_RESULT)
        source = "a bundle" if bundled.has_times and not was_result else FROM_RESULT
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
        library.set_tags(session, run_id, bundled.notes.tags)
        recorder.end_run(session, run_id, run.state, run.reason, run.finished_at or run.created_at)
        return slug

    def link(self) -> None:
        """Give the new runs their parents: of the file, and of the runs that the importer has."""
        renamed, imported = self.report.renamed, set(self.report.imported)
        known = select(Run.id).where(or_(ALIVE, Run.slug.in_(imported)))
        if self._owner is not None:
            known = known.where(Run.owner == self._owner)
        for at in range(0, len(self._parents), LINKED_AT_ONCE):
            with self._database.write_in_turn() as session:
                for named, lineage in self._parents[at : at + LINKED_AT_ONCE]:
                    slug = renamed.get(named, named)
                    parent = renamed.get(lineage.parent, lineage.parent)
                    is_known = session.scalar(known.where(Run.slug == parent)) is not None
                    if is_known and slug in imported and parent != slug:
                        values = {"parent_slug": parent, "lineage": lineage.kind}
                        session.execute(update(Run).where(Run.slug == slug).values(values))

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
