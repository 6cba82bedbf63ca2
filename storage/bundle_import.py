"""Stores the runs of a bundle: all of them or none."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from ckv_core.events import RunFinished, RunPrepared
from storage import event_rows, repository
from storage.bundle import IMPORTED, is_same_content
from storage.bundle_reader import read_bundle
from storage.database import Database
from storage.models import Run
from storage.records import StoredRun


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
        parts = [f"Imported {len(self.imported)} of {len(self.imported) + len(self.skipped)} runs."]
        if self.skipped:
            parts.append(f"Already here: {', '.join(self.skipped)}.")
        parts += [
            f"Run {old} is {new} here, as another run has its name."
            for old, new in self.renamed.items()
        ]
        return " ".join(parts)


def import_bundle(database: Database, data: bytes, owner: str | None = None) -> ImportReport:
    """Check a whole bundle, then store its runs in one transaction.

    Args:
        database: open.
        data: the zip, from anybody.
        owner: the user to whom the runs will belong.

    Raises:
        StorageError: the bundle is wrong or the database failed; nothing of it was stored.
    """
    runs = read_bundle(data)
    report = ImportReport()
    with database.write() as session:
        for run in runs:
            _import_run(session, run, owner, report)
    return report


def _import_run(session: Session, run: StoredRun, owner: str | None, report: ImportReport) -> None:
    is_taken = session.scalar(select(Run.id).where(Run.slug == run.slug)) is not None
    if is_taken and _is_here(session, run, owner):
        report.skipped.append(run.slug)
        return
    slug = repository.create_run(session, run.request, run.title, run.created_at, owner)
    run_id = repository.active_run_id(session, slug)
    if run_id is None:
        raise AssertionError("a run that was just made is active")
    if is_taken:
        report.renamed[run.slug] = slug
    else:
        session.execute(update(Run).where(Run.id == run_id).values(slug=run.slug))
        slug = run.slug
    _save_result(session, run_id, run)
    repository.end_run(session, slug, run.state, run.reason, run.finished_at or run.created_at)
    report.imported.append(slug)


def _is_here(session: Session, run: StoredRun, owner: str | None) -> bool:
    """Whether the importer has this run; somebody else's is of no use to them."""
    try:
        if owner is not None and repository.run_owner(session, run.slug) != owner:
            return False
        return is_same_content(repository.load_run(session, run.slug), run)
    except repository.RunMissingError:
        return False  # deleted, but its name is not free yet


def _save_result(session: Session, run_id: int, run: StoredRun) -> None:
    result = run.result
    mark = f"{datetime.now(UTC):%Y-%m-%d} from a bundle"
    environment = {**result.environment, IMPORTED: mark}
    if result.model is not None and result.prompt is not None:
        prepared = RunPrepared(
            result.model,
            result.prompt,
            tuple(result.variants),
            environment,
            result.kind,
            result.memory,
        )
        event_rows.save_prepared(session, run_id, prepared)
    if result.finished:
        event_rows.save_run_finished(session, run_id, RunFinished(result.timings_ms))
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
