"""Who asks, and what they may see: the one place that every service method turns to."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from gradio.context import LocalContext

from ckv_core.errors import CkvError
from storage import repository
from storage.database import Database

SCOPE_KEY = "ckv.viewer"
LOGIN_NEEDED = "Log in to do this; a share link only shows its run."


class AccessError(CkvError):
    """The one who asks may not do this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """The one behind a request.

    Attributes:
        user: name of who logged in; None for nobody.
        shared: slugs of the runs that share links open to this browser.
        is_trusted: may do everything: the server itself, and everybody without logins.
    """

    user: str | None = None
    shared: frozenset[str] = frozenset()
    is_trusted: bool = False


EVERYBODY = Viewer(is_trusted=True)
_current: ContextVar[Viewer | None] = ContextVar("viewer", default=None)


class Access:
    """Answers what the current viewer may do; without logins that is everything."""

    def __init__(self, database: Database, *, with_logins: bool = False) -> None:
        self._database = database
        self.with_logins = with_logins

    def user(self) -> str | None:
        """Whose library this is; None where everybody shares one.

        Raises:
            AccessError: the viewer has no library.
        """
        viewer = self._viewer()
        if viewer.user is None and not viewer.is_trusted:
            raise AccessError(LOGIN_NEEDED)
        return viewer.user

    @property
    def is_guest(self) -> bool:
        """Whether the viewer can only read what share links open."""
        viewer = self._viewer()
        return viewer.user is None and not viewer.is_trusted

    def check_run(self, slug: str, *, change: bool = False) -> None:
        """Refuse a run that is not the viewer's, with the error of one that does not exist.

        Args:
            slug: of the run.
            change: whether more than reading is wanted.

        Raises:
            RunMissingError: there is none, or it is somebody else's.
        """
        viewer = self._viewer()
        if viewer.is_trusted or (slug in viewer.shared and not change):
            return
        with self._database.read() as session:
            owner = repository.run_owner(session, slug)
        if owner is None or owner != viewer.user:
            raise repository.missing_run(slug)

    def may_change(self, slug: str) -> bool:
        """Whether the viewer may do more with a run than read it."""
        try:
            self.check_run(slug, change=True)
        except CkvError:
            return False
        return True

    def _viewer(self) -> Viewer:
        if not self.with_logins:
            return EVERYBODY
        viewer = _of_gradio() or _current.get()
        # Whoever cannot be told is nobody.
        return viewer or Viewer()


@contextmanager
def acting_as(viewer: Viewer | None) -> Iterator[None]:
    """Within it, and in what it starts, services answer to this viewer; to nobody for None."""
    token = _current.set(viewer)
    try:
        yield
    finally:
        _current.reset(token)


def _of_gradio() -> Viewer | None:
    """The viewer of the event that Gradio handles; its queue runs outside of the request."""
    request = LocalContext.request.get(None)
    if request is None:
        return None
    # MCP hands over the bare request, every other way Gradio's wrapper around it.
    asked: Any = getattr(request, "request", request)
    viewer = asked.scope.get(SCOPE_KEY) if asked is not None else None
    return viewer if isinstance(viewer, Viewer) else Viewer()
