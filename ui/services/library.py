"""The library of saved runs as pages see it: find, annotate, delete with undo."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from ckv_core.records.kept_folder import KeptFolder
from storage import audit, library, repository
from storage.database import Database
from storage.records import RunFilter, RunNotes, RunRelative, RunSort, RunSummary
from storage.usage import usage_of
from ui.accounts.access import Access
from ui.services.room import UNDO, Room


class Library:
    """Any thread may call any method; every method raises StorageError if the database fails."""

    def __init__(
        self, database: Database, access: Access, let_go: Callable[[str], None], room: Room
    ) -> None:
        """Prepare; `let_go` hears of each deletion, and raises for a run that is not over."""
        self._database = database
        self._access = access
        self._let_go = let_go
        self._room = room

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

    def delete(self, slugs: Sequence[str]) -> None:
        """Delete finished runs; all or none."""
        for slug in slugs:
            self._access.check_run(slug, "change")
        for slug in slugs:
            self._let_go(slug)
        self._room.purge()
        with self._database.write() as session:
            library.delete_runs(session, slugs, datetime.now(UTC))
            if slugs:
                audit.record(session, self._access.user(), "deleted", *slugs)

    def restore(self, slugs: Sequence[str]) -> int:
        """Undo a deletion of the last ten minutes, if there is room; returns how many came back."""
        owner = self._access.user(change=True)
        with self._database.write() as session:
            saved = usage_of(session, owner).runs
            since = datetime.now(UTC) - UNDO
            restored = library.restore_runs(session, slugs, since, owner)
            if restored:
                limits, size = self._room.limits, usage_of(session, owner).run_bytes
                limits.check_saved(saved + len(restored) - 1)
                limits.check_bytes(size, KeptFolder(owner).size(), more=0)
                audit.record(session, owner, "restored", *restored)
        return len(restored)
