"""Who sends a request, and what they may see: the one place that every service method checks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from ckv_core.errors import CkvError
from storage import credentials, repository
from storage.credentials import Scope
from storage.database import Database
from ui.users import User

SCOPE_KEY = "ckv.viewer"
LOGIN_NEEDED = "Log in to do this; a share link only shows its run."
READS_ONLY = "This token may only read; make one that may write on the page /account."
PASSWORD_NEEDED = "Log in with the password to do this; a token is not enough."  # noqa: S105
ADMIN_NEEDED = "Only an administrator may do this."
DISABLED = "Its owner may no longer log in."  # why a study was stopped
# To see a run, to see what its owner alone sees of it, to change it.
Right = Literal["read", "own", "change"]


class AccessError(CkvError):
    """The viewer may not do this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """The one behind a request.

    Attributes:
        user: name of who logged in; None for nobody.
        shared: slugs of the runs that share links open to this browser.
        is_trusted: may do everything: the server itself, and everybody without logins.
        scope: what the login is good for; `all` is what a password gives.
        is_admin: may see queue, storage, users and the audit log of all.
        credential: number of the session or token that was shown; None for none.
    """

    user: str | None = None
    shared: frozenset[str] = frozenset()
    is_trusted: bool = False
    scope: Scope = "all"
    is_admin: bool = False
    credential: int | None = None


EVERYBODY = Viewer(is_trusted=True, is_admin=True)
_current: ContextVar[Viewer | None] = ContextVar("viewer", default=None)


class Access:
    """Answers what the current viewer may do; without logins that is everything."""

    def __init__(self, database: Database, users: Mapping[str, User] | None = None) -> None:
        """Answer for the users who may log in, by name; without any there are no logins."""
        self._database = database
        self.public: frozenset[str] = frozenset()  # runs of the app's own, which everybody may read
        self.users = users or {}
        self.with_logins = bool(users)

    def user(self, *, change: bool = False) -> str | None:
        """Whose library this is, None for everybody's; AccessError if it may not be used so."""
        viewer = self.viewer()
        if viewer.user is None and not viewer.is_trusted:
            raise AccessError(LOGIN_NEEDED)
        if change and viewer.scope == "read":
            raise AccessError(READS_ONLY)
        return viewer.user

    def account(self) -> str:
        """Whose sessions and tokens these are; AccessError without a login by password."""
        user = self.user()
        if user is None:
            raise AccessError("This app has no logins, so there are no accounts.")
        if self.viewer().scope != "all":
            raise AccessError(PASSWORD_NEEDED)
        return user

    def may_work(self, owner: str | None) -> bool:
        """Whether what a user left to run may go on: who was removed or disabled has nothing."""
        if not (self.with_logins and owner):
            return True
        if owner not in self.users:
            return False
        return not self._database.read_with(credentials.is_disabled, owner)

    def check_admin(self) -> None:
        """AccessError for a viewer who is no administrator, or came with a token."""
        viewer = self.viewer()
        if not viewer.is_trusted:
            self.account()
        if not viewer.is_admin:
            raise AccessError(ADMIN_NEEDED)

    @property
    def is_guest(self) -> bool:
        """Whether the viewer can only read what share links open."""
        viewer = self.viewer()
        return viewer.user is None and not viewer.is_trusted

    def check_run(self, slug: str, right: Right = "read") -> None:
        """RunMissingError for another's run as for none; AccessError for one who only reads."""
        viewer = self.viewer()
        is_open = slug in viewer.shared or slug in self.public
        if viewer.is_trusted or (is_open and right == "read"):
            return
        owner = self._database.read_with(repository.run_owner, slug)
        if owner is None or owner != viewer.user:
            raise repository.missing_run(slug)
        if right == "change" and viewer.scope == "read":
            raise AccessError(READS_ONLY)

    def may(self, slug: str, right: Right) -> bool:
        try:
            self.check_run(slug, right)
        except CkvError:
            return False
        return True

    def viewer(self) -> Viewer:
        if not self.with_logins:
            return EVERYBODY
        return _current.get() or Viewer()  # of an unknown request: nobody


@contextmanager
def acting_as(viewer: Viewer | None) -> Iterator[None]:
    """Within it, and in what it starts, services answer to this viewer; to nobody for None."""
    token = _current.set(viewer)
    try:
        yield
    finally:
        _current.reset(token)
