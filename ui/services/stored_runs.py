"""Runs that do not live in this server: over, or unfinished in another one of the same database."""

import logging

from ckv_core.errors import StorageError
from storage import repository, servers
from storage.database import Database
from storage.library import NOT_OVER
from storage.recorder import Recorder
from storage.repository import DecodedRuns
from ui.services.live_runs import RunSnapshot, stored_snapshot

LOGGER = logging.getLogger(__name__)
LEFT_BEHIND = "The app stopped before this run ended; run it again."
POLL_INTERVAL_S = 1.0  # other servers write generated text once a second


class StoredRuns:
    """Any thread may call any method; every method raises StorageError if the database fails."""

    def __init__(self, database: Database, recorder: Recorder) -> None:
        self._database = database
        self._recorder = recorder
        self._decoded = DecodedRuns()

    def recover(self) -> None:
        """Fail what dead servers left behind; on SQLite at start only."""
        if left := self._recorder.recover(LEFT_BEHIND):
            LOGGER.warning("%d unfinished runs of dead servers were marked as failed.", left)

    def snapshot(self, slug: str) -> RunSnapshot:
        """A run as it is recorded; one whose server died meanwhile is failed first."""
        if self._ahead_elsewhere(slug) is not None:
            self.recover()
        with self._database.read() as session:
            stored = repository.load_run(session, slug, self._decoded)
            ahead = servers.ahead_elsewhere(session, slug, self._database.server)
        return stored_snapshot(stored, ahead)

    def cancel(self, slug: str, reason: str) -> None:
        """Record the end of another server's run; that server stops at the next it records."""
        if self._ahead_elsewhere(slug) is not None:
            self._recorder.cancel(slug, reason)

    def let_go(self, slug: str) -> None:
        """Forget a run that is to be deleted; refuses one that another server is at."""
        if self._ahead_elsewhere(slug) is not None:
            raise StorageError(NOT_OVER)
        self._decoded.forget(slug)

    def _ahead_elsewhere(self, slug: str) -> int | None:
        if self._database.server is None:
            return None
        with self._database.read() as session:
            return servers.ahead_elsewhere(session, slug, self._database.server)
