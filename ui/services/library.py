"""The library of saved runs as pages see it: find, annotate, delete with undo."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ckv_core.records.kept_folder import KeptFolder
from storage import audit, library, repository, usage
from storage.database import Database
from storage.records import RunFilter, RunNotes, RunRelative, RunSort, RunSummary
from ui.accounts.access import Access
from ui.limits import Limits

UNDO_MINUTES = 10
_UNDO = timedelta(minutes=UNDO_MINUTES)


class Library:
    """Any thread may call any method; every method raises StorageError if the database fails."""

    def __init__(
        self, database: Database, access: Access, let_go: Callable[[str], None], limits: Limits
    ) -> None:
        """Purge old deletions; `let_go` hears of each, and raises for a run that is not over."""
        self._database = database
        self._access = access
        self._let_go = let_go
        self._limits = limits
        self.purge()

    def list_runs(
        self,
        wanted: RunFilter | None = None,
        sort: RunSort = "newest",
        limit: int = 50,
        offset: int = 0,
    ) -> tuple[list[RunSummary], int]:
        """One page of the runs that pass the filter, and how many pass; pinned ones first."""
        wanted = replace(wanted or RunFilter(), owner=self._access.user() or "")
        return self._database.read_with(library.list_runs, wanted, sort, limit, offset)

    def are_runs_of_nobody(self) -> bool:
        """Whether logins hide runs that were made without them."""
        if self._access.user() is None:
            return False
        return self._database.read_with(library.are_runs_of_nobody)

    def summary(self, slug: str) -> RunSummary:
        self._access.check_run(slug)
        return self._database.read_with(library.summary, slug)

    def choices(self) -> dict[str, list[str]]:
        owner = self._access.user()
        return self._database.read_with(library.choices, owner)

    def relatives(self, slug: str) -> tuple[RunRelative | None, list[RunRelative]]:
        self._access.check_run(slug, "own")
        owner = self._access.user()
        return self._database.read_with(library.relatives, slug, owner)

    def notes(self, slug: str) -> RunNotes:
        """A run's note and tags; those who may only read the run get none."""
        self._access.check_run(slug)
        if not self._access.may(slug, "own"):
            return RunNotes()
        return self._database.read_with(repository.load_notes, slug)

    def annotate(self, slug: str, title: str, note: str, tags: Sequence[str]) -> None:
        self._access.check_run(slug, "change")
        self._database.write_with(library.annotate, slug, title, note, tags)

    def add_tag(self, slugs: Sequence[str], tag: str) -> None:
        for slug in slugs:
            self._access.check_run(slug, "change")
        self._database.write_with(library.add_tag, slugs, tag)

    def set_pinned(self, slug: str, *, pinned: bool) -> None:
        self._access.check_run(slug, "change")
        self._database.write_with(library.set_pinned, slug, pinned=pinned)

    def purge(self) -> None:
        """Remove for good what was deleted too long ago to be restored."""
        until = _now() - _UNDO
        left = 1
        while left:
            with self._database.write_in_turn() as session:
                left = library.purge_deleted(session, until)

    def delete(self, slugs: Sequence[str]) -> None:
        """Delete finished runs; all or none."""
        for slug in slugs:
            self._access.check_run(slug, "change")
        for slug in slugs:
            self._let_go(slug)
        self.purge()
        with self._database.write() as session:
            library.delete_runs(session, slugs, _now())
            if slugs:
                audit.record(session, self._access.user(), "deleted", *slugs)

    def restore(self, slugs: Sequence[str]) -> int:
        """Undo a deletion of the last ten minutes, if there is room; returns how many came back."""
        owner = self._access.user(change=True)
        with self._database.write() as session:
            saved = usage.usage_of(session, owner).runs
            restored = library.restore_runs(session, slugs, _now() - _UNDO, owner)
            if restored:
                self._limits.check_saved(saved + len(restored) - 1)
                size = usage.usage_of(session, owner).run_bytes
                self._limits.check_bytes(size, KeptFolder(owner).size(), more=0)
                audit.record(session, owner, "restored", *restored)
        return len(restored)


def _now() -> datetime:
    return datetime.now(UTC)


def check_room(database: Database, limits: Limits, owner: str | None, more: int = 1) -> int:
    """Bytes that are left to this user, or without logins to all; LimitError for fewer."""
    used = database.read_with(usage.usage_of, owner)
    return limits.check_bytes(used.run_bytes, KeptFolder(owner).size(), more)


def check_new_run(database: Database, limits: Limits, owner: str | None, more: int = 1) -> None:
    """LimitError where this user may store no further run, of so many bytes."""
    limits.check_saved(database.read_with(usage.usage_of, owner).runs)
    check_room(database, limits, owner, more)
