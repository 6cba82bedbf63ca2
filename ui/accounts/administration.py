"""What an administrator sees and does: queue, storage, users, audit log. Never a text of a run."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ckv_core.base.home import home_folder
from ckv_core.errors import ConfigError
from ckv_core.records.kept_caches import KeptFolder
from storage import audit, credentials, library, repository, usage
from storage.audit import AuditRecord
from storage.credentials import AccountRecord
from storage.database import Database
from storage.usage import OwnerUsage, WaitingRun
from ui.accounts.access import DISABLED, Access

STOPPED = "Stopped by an administrator."


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """What the runs take.

    Attributes:
        owners: by user, the biggest first.
        cache_bytes: of kept caches on this machine, by user; None for those without logins.
        database_bytes: of the whole database.
        free_bytes: of the disk on which a SQLite database lies, else of the data folder's.
        is_local: whether that disk is the database's.
    """

    owners: list[OwnerUsage]
    cache_bytes: dict[str | None, int]
    database_bytes: int
    free_bytes: int
    is_local: bool


@dataclass(frozen=True, slots=True)
class UserRow:
    """One user of the users' file; UTC, None for never."""

    name: str
    is_admin: bool
    disabled_at: datetime | None
    last_login_at: datetime | None
    tokens: int


class Administration:
    """Every method is for administrators; without logins everybody is one."""

    def __init__(
        self, database: Database, access: Access, stop: Callable[[str, str], None]
    ) -> None:
        """Administer an app; `stop` stops any user's run of a slug, for a reason."""
        self._database = database
        self._access = access
        self._stop = stop

    def queue(self) -> list[WaitingRun]:
        """The runs that are not over, of all servers of the database."""
        self._access.check_admin()
        return self._database.read_with(usage.waiting_runs)

    def cancel(self, slug: str) -> None:
        self._access.check_admin()
        actor = self._access.viewer().user
        with self._database.write() as session:
            if repository.run_owner(session, slug) != actor:
                audit.record(session, actor, "cancelled", slug)
        self._stop(slug, STOPPED)

    def storage(self) -> StorageUsage:
        self._access.check_admin()
        with self._database.read() as session:
            owners = usage.usage_by_owner(session)
            size = usage.database_bytes(session)
        file = Path(self._database.name)
        is_local = file.is_file()
        disk = shutil.disk_usage(file.parent if is_local else home_folder())
        caches = {name: KeptFolder(name).size() for name in (None, *self._access.users)}
        known = {each.owner for each in owners}
        missing = [name for name, kept in caches.items() if kept and name not in known]
        owners += [OwnerUsage(owner=name) for name in missing]
        return StorageUsage(owners, caches, size, disk.free, is_local)

    def count_of_nobody(self) -> int:
        """How many runs were made without logins, and are hidden by them."""
        self._access.check_admin()
        if not self._access.with_logins:
            return 0
        return self._database.read_with(library.count_of_nobody)

    def take_over(self) -> None:
        """Make the runs that nobody owns the administrator's own."""
        self._access.check_admin()
        actor = self._access.account()
        self._database.write_with(library.take_over, actor, actor)

    def users(self) -> list[UserRow]:
        self._access.check_admin()
        now = datetime.now(UTC)
        with self._database.read() as session:
            known = credentials.accounts(session)
            tokens = credentials.list_credentials(session, kind="token")
        counts = [token.owner for token in tokens if token.is_open(now)]
        rows = []
        for name, user in sorted(self._access.users.items()):
            account = known.get(name, AccountRecord())
            times = (account.disabled_at, account.last_login_at)
            rows.append(UserRow(name, user.is_admin, *times, counts.count(name)))
        return rows

    def set_disabled(self, name: str, *, disabled: bool) -> bool:
        """Shut a user out, or in again; False for no change.

        With the user end all sessions and tokens, and what runs or waits to.
        """
        self._access.check_admin()
        actor = self._access.account()
        if name not in self._access.users:
            raise ConfigError("There is no user of this name.")
        if name == actor:
            raise ConfigError("You cannot disable yourself; ask another administrator.")
        now = datetime.now(UTC)
        with self._database.write() as session:
            if not credentials.set_disabled(session, actor, name, now if disabled else None):
                return False
            runs = [run.slug for run in usage.waiting_runs(session) if run.owner == name]
        if disabled:
            for slug in runs:
                self._stop(slug, DISABLED)
        return True

    def audit(self, limit: int) -> list[AuditRecord]:
        """The newest entries."""
        self._access.check_admin()
        return self._database.read_with(audit.list_entries, limit)
