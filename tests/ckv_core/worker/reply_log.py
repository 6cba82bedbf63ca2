"""Collects the replies of a worker client, and waits for them."""

import threading
from collections.abc import Callable

from ckv_core.records.events import RunResult
from ckv_core.worker.messages import JobEnd, JobEvent, Reply
from tests.factories.events import folded
from tests.processes import PATIENCE_S


class Log:
    """All replies of a client, with waiting."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self._arrived = threading.Condition()

    def __call__(self, reply: Reply) -> None:
        with self._arrived:
            self.replies.append(reply)
            self._arrived.notify_all()

    def wait(self, wanted: Callable[[Reply], bool], timeout_s: float = PATIENCE_S) -> Reply:
        """The first reply that fits, past ones included."""

        def found() -> Reply | None:
            return next((reply for reply in self.replies if wanted(reply)), None)

        with self._arrived:
            assert self._arrived.wait_for(found, timeout_s), f"not in {self.replies[-5:]}"
            reply = found()
            assert reply is not None
            return reply

    def end_of(self, job_id: str, timeout_s: float = PATIENCE_S) -> Reply:
        return self.wait(lambda r: isinstance(r, JobEnd) and r.job_id == job_id, timeout_s)

    def failure_of(self, job_id: str) -> str:
        """Why it failed."""
        end = self.end_of(job_id)
        assert isinstance(end, JobEnd)
        assert end.state == "failed"
        return end.reason

    def result_of(self, job_id: str) -> RunResult:
        """What its events so far add up to."""
        return folded(
            r.event for r in self.replies if isinstance(r, JobEvent) and r.job_id == job_id
        )

    def start_of(self, job_id: str) -> Reply:
        return self.wait(lambda r: isinstance(r, JobEvent) and r.job_id == job_id)
