"""Whether there is room for what a user wants stored: of bytes, in the database and on the disk."""

from ckv_core.results.kept_folder import KeptFolder
from storage.database import Database
from storage.usage import saved_runs, stored_bytes
from ui.limits import Limits


def check_room(database: Database, limits: Limits, owner: str | None, more: int = 1) -> int:
    """Bytes that are left to this user, or without logins to all; LimitError for fewer."""
    runs = database.ask(stored_bytes, owner)
    return limits.check_bytes(runs, KeptFolder(owner).size(), more)


def check_new_run(database: Database, limits: Limits, owner: str | None, more: int = 1) -> None:
    """LimitError where this user may store no further run, of so many bytes."""
    limits.check_saved(database.ask(saved_runs, owner))
    check_room(database, limits, owner, more)
