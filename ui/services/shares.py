"""Share links for the pages: make, list, revoke and open them."""

from collections.abc import Iterable
from datetime import UTC, datetime

from ckv_core.errors import ConfigError
from storage import credentials
from storage.credentials import CredentialRecord
from storage.database import Database
from storage.repository import key_of
from ui.accounts.access import Access
from ui.limits import LimitError

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
