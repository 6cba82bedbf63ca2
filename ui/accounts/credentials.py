"""Logging in and out, and a user's own sessions and API tokens."""

import logging
from datetime import UTC, datetime, timedelta

from ckv_core.errors import ConfigError, StorageError
from storage import audit, credentials
from storage.credentials import CredentialRecord, Kind, Scope
from storage.database import Database
from ui.accounts.access import Access, Viewer
from ui.limits import LimitError

LOGGER = logging.getLogger(__name__)
SESSION_LASTS = timedelta(days=14)
EXPIRIES_DAYS: dict[str, int | None] = {
    "7 days": 7,
    "30 days": 30,
    "90 days": 90,
    "365 days": 365,
    "Never": None,
}
SCOPES: dict[str, Scope] = {"Read": "read", "Read and write": "write"}
NAME_CHARS = 60
OPEN_TOKENS = 32  # of one user at a time
DISABLED = "This user is disabled; ask the administrator of this app."


class Accounts:
    """Any thread may call any method; all but the first three are for the viewer."""

    def __init__(self, database: Database, access: Access) -> None:
        self._database = database
        self._access = access

    # --- for ui/server/identity.py ------------------------------------------------------------

    def viewer(self, kind: Kind, token: str) -> Viewer | None:
        """Who shows this session or API token; None for nobody who may come in."""
        now = datetime.now(UTC)
        record = self._database.read_with(credentials.find, token, kind, now)
        user = self._access.users.get(record.owner or "") if record else None
        if record is None or user is None:
            return None
        if kind == "session" and record.password_mark != user.mark:
            return None
        if record.last_used_at is None or now - record.last_used_at > credentials.TOUCHED_EVERY:
            try:
                with self._database.write() as session:
                    credentials.touch(session, record.id, now)
            except StorageError:  # a full disk locks nobody out
                LOGGER.exception("The last use of a login could not be noted.")
        return Viewer(
            user=record.owner,
            scope=record.scope,
            is_admin=user.is_admin and record.scope == "all",
            credential=record.id,
        )

    def note_failure(self, user: str | None) -> None:
        """Tell the audit log of a wrong password; None for an unknown name."""
        try:
            self._database.write_with(audit.record, user, "failed to sign in")
        except StorageError:
            LOGGER.exception("A login is missing in the audit log.")

    def sign_in(self, user: str) -> str | None:
        """Start a session of a user who gave the password; its token, or None if disabled."""
        now = datetime.now(UTC)
        known = self._access.users.get(user)
        with self._database.write() as session:
            if known is None or credentials.is_disabled(session, user):
                audit.record(session, user, "failed to sign in")
                return None
            credentials.purge(session, now)
            credentials.note_login(session, user, now)
            values = {"owner": user, "scope": "all", "password_mark": known.mark}
            return credentials.create(
                session, user, "session", now=now, days=SESSION_LASTS.days, **values
            )

    # --- for the one who is logged in ---------------------------------------------------------

    def sign_out(self) -> None:
        """End the session of this request; nothing if it came without one."""
        viewer = self._access.viewer()
        if viewer.credential is None or viewer.scope != "all":
            return
        with self._database.write() as session:
            credentials.revoke(session, viewer.user, datetime.now(UTC), id=viewer.credential)

    def open(self, kind: Kind) -> list[CredentialRecord]:
        """The viewer's sessions or tokens that are good, newest first."""
        owner, now = self._access.account(), datetime.now(UTC)
        known = self._database.read_with(credentials.list_credentials, kind=kind, owner=owner)
        return [each for each in known if each.is_open(now)]

    def make_token(self, name: str, scope: str, expiry: str) -> str:
        """Make an API token of SCOPES and EXPIRIES_DAYS; it can be shown this once."""
        owner = self._access.account()
        name = " ".join(name.split())
        if not 0 < len(name) <= NAME_CHARS or not name.isprintable():
            raise ConfigError(f"Give the token a name of 1 to {NAME_CHARS} characters.")
        if scope not in SCOPES or expiry not in EXPIRIES_DAYS:
            raise ConfigError("Choose what the token may do and how long it works.")
        if len(self.open("token")) >= OPEN_TOKENS:
            raise LimitError(f"You have {OPEN_TOKENS} tokens; revoke one first.")
        now, days = datetime.now(UTC), EXPIRIES_DAYS[expiry]
        values = {"owner": owner, "scope": SCOPES[scope], "name": name}
        with self._database.write() as session:
            return credentials.create(session, owner, "token", now=now, days=days, **values)

    def revoke(self, credential_id: int) -> bool:
        """End one of the viewer's tokens or sessions; False if it was not open."""
        owner = self._access.account()
        now = datetime.now(UTC)
        with self._database.write() as session:
            closed = credentials.revoke(session, owner, now, id=credential_id, owner=owner)
        return closed is not None
