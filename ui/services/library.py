"""The library of saved runs as pages see it: find, annotate, delete with undo, room, links."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ckv_core.errors import ConfigError
from ckv_core.records.kept_caches import KeptFolder
from storage import audit, credentials, library, repository
from storage.credentials import CredentialRecord
from storage.database import Database
from storage.records import RunFilter, RunNotes, RunSort, RunSummary
from storage.repository import key_of
from storage.usage import usage_of
from ui.accounts.access import Access
from ui.limits import LimitError, Limits

# --- room for one more run, among the saved ones and on the disk ---------------------------

UNDO_MINUTES = 10
UNDO = timedelta(minutes=UNDO_MINUTES)


class Room:
    """The limits of one app, checked before anything is stored.

    Any thread may call any method; LimitError says that there is no room, StorageError that the
    database failed. `owner` is the user who would own it, None without logins.
    """

    def __init__(self, database: Database, limits: Limits) -> None:
        self._database = database
        self.limits = limits

    def check(self, owner: str | None, more: int = 1) -> int:
        """Bytes that are left to this user, or without logins to all; at least `more`."""
        used = self._database.read_with(usage_of, owner)
        return self.limits.check_bytes(used.run_bytes, KeptFolder(owner).size(), more)

    def check_new(self, owner: str | None, more: int = 1) -> None:
        """For one more saved run, of so many bytes."""
        self.purge()
        self.limits.check_saved(self._database.read_with(usage_of, owner).runs)
        self.check(owner, more)

    def purge(self) -> None:
        """Remove for good what was deleted too long ago to be restored."""
        until, left = datetime.now(UTC) - UNDO, 1
        while left:
            with self._database.write_in_turn() as session:
                left = library.purge_deleted(session, until)


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
        """One page of the runs that pass the filter, and how many pass."""
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

    def notes(self, slug: str) -> RunNotes:
        """A run's note; those who may only read the run get none."""
        self._access.check_run(slug)
        if not self._access.may(slug, "own"):
            return RunNotes()
        return self._database.read_with(repository.load_notes, slug)

    def annotate(self, slug: str, title: str, note: str) -> None:
        self._access.check_run(slug, "change")
        self._database.write_with(library.annotate, slug, title, note)

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


# --- share links ------------------------------------------------------------------------

EXPIRIES_DAYS: dict[str, int | None] = {"1 day": 1, "7 days": 7, "30 days": 30, "never": None}
OPEN_LINKS = 32  # of one run at a time
COOKIE_PREFIX = "ckv_share_"
COOKIES = 16  # of one request that are looked at; browsers send the newest last


class Shares:
    """The links of runs; every method but `opened` and `slugs` is for the run's owner."""

    def __init__(self, database: Database, access: Access) -> None:
        self._database = database
        self._access = access

    def create(self, slug: str, expiry: str) -> str:
        """Make a link that lasts as long as one of EXPIRIES_DAYS says; returns its token."""
        self._access.check_run(slug, "change")
        if expiry not in EXPIRIES_DAYS:
            raise ConfigError("Choose when the link expires.")
        now, owner, days = datetime.now(UTC), self._access.user(), EXPIRIES_DAYS[expiry]
        with self._database.write() as session:
            run_id = key_of(session, slug)
            links = credentials.list_credentials(session, run_id=run_id)
            if sum(link.is_open(now) for link in links) >= OPEN_LINKS:
                raise LimitError(f"This run has {OPEN_LINKS} open links; revoke one first.")
            values = {"owner": owner, "scope": "read", "run_id": run_id}
            return credentials.create(session, owner, "share", now=now, days=days, **values)

    def of_run(self, slug: str) -> list[CredentialRecord]:
        self._access.check_run(slug, "own")
        with self._database.read() as session:
            return credentials.list_credentials(session, run_id=key_of(session, slug))

    def revoke(self, slug: str, share_id: int) -> bool:
        """Close a link; False if it was closed already or is not of this run."""
        self._access.check_run(slug, "change")
        actor, now = self._access.user(), datetime.now(UTC)
        with self._database.write() as session:
            which = {"id": share_id, "run_id": key_of(session, slug)}
            closed = credentials.revoke(session, actor, now, **which)
        return closed is not None

    def opened(self, token: str) -> str | None:
        """The run behind a token; None for a wrong, expired or revoked one."""
        return self._database.read_with(credentials.shared_slug, token, datetime.now(UTC))

    def slugs(self, cookies: Iterable[tuple[str, str]]) -> frozenset[str]:
        """The runs that a browser's share cookies (slug, token) open now."""
        given = list(cookies)[-COOKIES:]
        return frozenset(slug for slug, token in given if self.opened(token) == slug)
