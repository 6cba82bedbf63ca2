"""Room for one more run, among the saved ones and on the disk."""

from datetime import UTC, datetime, timedelta

from ckv_core.records.kept_folder import KeptFolder
from storage import library
from storage.database import Database
from storage.usage import usage_of
from ui.limits import Limits

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
