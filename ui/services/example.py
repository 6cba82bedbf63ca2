"""The app's own run of one example: made once after the start, and read by everybody."""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from ckv_core.errors import CkvError
from ckv_core.records.run_request import RunRequest
from storage import library, repository
from storage.database import Database
from storage.records import RunFilter
from ui.accounts.access import Access
from ui.services.live_runs import RunSnapshot
from ui.services.runs import Runs

LOGGER = logging.getLogger(__name__)
OWNER = "(example)"  # no user can have this name
TITLE = "Example: {}"
LOOK_S = 0.5  # between looks whether somebody else's run waits
KEPT = 16  # former examples that are looked at
GIVE_WAY = "Another run came first."


class Example:
    """Makes the run in a thread of its own while nothing else runs; it gives way to other runs.

    Its owner is nobody who can log in, so it is in nobody's list and takes nobody's room; `Access`
    lets everybody read it. A failure is logged and tried again at the next start.
    """

    def __init__(
        self,
        database: Database,
        access: Access,
        runs: Runs,
        is_ready: Callable[[str], bool],
    ) -> None:
        """Make nothing before `begin`; `is_ready` says whether a model is loaded."""
        self._database = database
        self._access = access
        self._runs = runs
        self._is_ready = is_ready
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._slug = ""

    @property
    def is_expected(self) -> bool:
        """Whether the run is there, or may still come."""
        return bool(self._slug) or (self._thread is not None and self._thread.is_alive())

    def begin(self, request: RunRequest) -> None:
        """Find the run of this request in storage, or make it once the model is ready."""
        self._thread = threading.Thread(
            target=self._make, args=(request,), name="example", daemon=True
        )
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Make no run any more; one that runs ends with the worker."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def view(self) -> RunSnapshot | None:
        """The run as it is now; None before it starts and once it is deleted."""
        slug = self._slug
        if not slug:
            return None
        run = self._runs.find(slug)
        try:
            return self._runs.stored(slug) if run is None else self._runs.view(run)
        except repository.RunMissingError:
            self._show("")
            return None

    def _show(self, slug: str) -> None:
        self._slug = slug
        self._access.public = frozenset({slug} if slug else ())

    def _make(self, request: RunRequest) -> None:
        try:
            if slug := self._stored(request):
                self._show(slug)
                return
            while not self._closing.wait(LOOK_S):
                free = not self._runs.unfinished()
                if free and self._is_ready(request.model) and self._run(request):
                    return
        except Exception:  # the app is whole without an example
            LOGGER.exception("The example run could not be made.")
            self._show("")

    def _stored(self, request: RunRequest) -> str:
        """The slug of the run as it was made by an earlier start; what was broken off goes."""
        mine = RunFilter(owner=OWNER)
        found, _ = self._database.read_with(library.list_runs, mine, "newest", KEPT)
        broken = [run.slug for run in found if run.state in ("failed", "cancelled")]
        self._database.write_with(library.delete_runs, broken, datetime.now(UTC))
        for run in found:
            if run.state == "done" and self._runs.stored(run.slug).request == request:
                return run.slug
        return ""

    def _run(self, request: RunRequest) -> bool:
        """Run it to its end; False if another run came first and it is to be tried again."""
        slug = self._runs.submit(request, OWNER, TITLE.format(request.question))
        self._show(slug)
        was_stopped = False
        while (view := self.view()) is not None and not view.is_final:
            if self._closing.wait(LOOK_S):
                return True
            if not was_stopped and len(self._runs.unfinished()) > 1:
                self._runs.stop(slug, GIVE_WAY)
                was_stopped = True
        if view is None or view.state == "done":
            return True
        LOGGER.info("The example run ended as %s: %s", view.state, view.reason)
        self._show("")
        try:
            self._runs.let_go(slug)
            self._database.write_with(library.delete_runs, [slug], datetime.now(UTC))
        except CkvError:
            LOGGER.exception("The example run %s stays in the list.", slug)
        return not was_stopped
