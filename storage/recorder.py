"""The only writer: turns requests, events and ends of runs into committed rows."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import Generated, Progress, RunEvent
from storage import event_rows, repository, servers
from storage.database import Database
from storage.records import Lineage, RunState

GENERATED_INTERVAL_S = 1.0
TITLE_CHARS = 80


@dataclass(slots=True)
class _Generation:
    """Last write of one run's text, and what came since."""

    written_at: float
    waiting: Generated | None = None


class Recorder:
    """Records runs; every method has committed when it returns and may be called by any thread.

    An end state is final: what comes later is passed over and the method returns False. The one
    thing held back is generated text, for up to a second after the last write of it; the next
    event of another kind, the next text after that second, or the end of the run writes it.

    All methods raise StorageError if the database fails.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._generations: dict[str, _Generation] = {}

    def create(
        self,
        request: CompareRequest,
        title: str = "",
        owner: str | None = None,
        lineage: Lineage | None = None,
    ) -> str:
        """Save a queued run; returns its slug.

        Args:
            request: as the user asked; validated by the caller.
            title: by default the first words of the question, or of the context.
            owner: the user who asked; None without logins.
            lineage: the run that it was made from.
        """
        title = title.strip() or title_of(request)
        with self._lock, self._database.write() as session:
            slug = repository.create_run(session, request, title, _now(), owner, lineage)
            servers.assign(session, slug, self._database.server)
            return slug

    def start(self, slug: str) -> bool:
        """Queued becomes running."""
        with self._lock:
            return self._database.tell(repository.mark_running, slug, _now())

    def apply(self, slug: str, event: RunEvent) -> bool:
        """Record one event; False if the run has ended or was deleted.

        Raises:
            StorageError: also if the event names a variant that the run lacks.
        """
        if isinstance(event, Progress):
            return True
        with self._lock:
            if isinstance(event, Generated) and self._hold(slug, event):
                return True
            run_id = self._database.tell(self._save, slug, event)
            if run_id is None:
                self._generations.pop(slug, None)
            elif isinstance(event, Generated) or slug in self._generations:
                self._generations[slug] = _Generation(self._clock())
            return run_id is not None

    def finish(self, slug: str) -> bool:
        return self._end(slug, "done", "")

    def fail(self, slug: str, reason: str) -> bool:
        """The run failed; `reason` is the sentence that the user reads."""
        return self._end(slug, "failed", reason)

    def cancel(self, slug: str, reason: str) -> bool:
        """The run was stopped; `reason` is the sentence that the user reads."""
        return self._end(slug, "cancelled", reason)

    def recover(self, reason: str) -> int:
        """Fail the runs that dead servers left behind; on SQLite at start only, before any run.

        Returns:
            How many there were; what they had recorded stays.
        """
        with self._lock, self._database.write() as session:
            return repository.fail_unfinished(session, reason, _now())

    def _hold(self, slug: str, event: Generated) -> bool:
        generation = self._generations.get(slug)
        if generation is None or self._clock() - generation.written_at >= GENERATED_INTERVAL_S:
            return False
        generation.waiting = event
        return True

    def _save(self, session: Session, slug: str, event: RunEvent) -> int | None:
        """Key of the active run whose event was saved; None if there is none."""
        run_id = repository.active_run_id(session, slug)
        if run_id is not None:
            if not isinstance(event, Generated):
                self._flush(session, run_id, slug)
            event_rows.save(session, run_id, event)
        return run_id

    def _save_end(self, session: Session, slug: str, state: RunState, reason: str) -> int | None:
        """Key of the run that ended; None if none was active."""
        run_id = repository.active_run_id(session, slug)
        if run_id is not None:
            self._flush(session, run_id, slug)
            repository.end_run(session, slug, state, reason, _now())
        return run_id

    def _flush(self, session: Session, run_id: int, slug: str) -> None:
        generation = self._generations.get(slug)
        if generation is not None and generation.waiting is not None:
            event_rows.save(session, run_id, generation.waiting)

    def end_of(self, slug: str) -> tuple[RunState, str] | None:
        """How a run ended, also if another server ended it; None if it has not, or is gone."""
        return self._database.ask(repository.run_end, slug)

    def _end(self, slug: str, state: RunState, reason: str) -> bool:
        with self._lock:
            run_id = self._database.tell(self._save_end, slug, state, reason)
            self._generations.pop(slug, None)
            return run_id is not None


def title_of(request: CompareRequest) -> str:
    """The first words of the question, or of the context."""
    return first_words(request.question) or first_words(request.context) or "Untitled run"


def first_words(text: str) -> str:
    """A title out of a text's beginning."""
    # A long text is cut before it is split, and then at a word's end where there is one.
    words = " ".join(text[: TITLE_CHARS * 4].split())
    if len(words) <= TITLE_CHARS:
        return words
    cut = words[:TITLE_CHARS]
    return (cut.rpartition(" ")[0] or cut) + "…"


def _now() -> datetime:
    return datetime.now(UTC)
