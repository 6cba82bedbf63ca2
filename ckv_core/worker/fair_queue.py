"""The jobs that wait for a worker; users take turns. No torch."""

import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from ckv_core.worker.messages import Job


@dataclass(slots=True)
class _Line:
    """What one user has waiting."""

    turn: int  # of the first job; each further one is a turn later
    # Each with its number in the order of arrival.
    jobs: deque[tuple[int, Job]] = field(default_factory=deque)


class FairQueue:
    """Round after round each user has one turn, first come, first served within it; thread-safe.

    A user who comes new, or again with nothing waiting, joins the present round: however many jobs
    another has waiting, at most one of them is still ahead, beside those that run. All jobs of
    `owner` None are one user's, so without logins the order is that of arrival.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str | None, _Line] = {}
        self._arrivals = count()
        self._turn = 0
        self._running: list[str] = []

    def put(self, job: Job) -> None:
        """Add a job behind the others of its owner."""
        with self._lock:
            line = self._lines.setdefault(job.owner, _Line(self._turn))
            line.jobs.append((next(self._arrivals), job))

    def take(self) -> Job | None:
        """Hand out whose turn it is; counts as running until `done`."""
        with self._lock:
            jobs = self._in_order()
            if not jobs:
                return None
            line = self._lines[jobs[0].owner]
            self._turn = line.turn
            line.turn += 1
            line.jobs.popleft()
            self._running.append(jobs[0].job_id)
            # A line is as good as none if it is empty and its next job would join this round.
            self._lines = {
                owner: line
                for owner, line in self._lines.items()
                if line.jobs or line.turn > self._turn
            }
            return jobs[0]

    def done(self, job_id: str) -> None:
        """A job that was taken is over."""
        with self._lock:
            self._running.remove(job_id)

    def remove(self, job_id: str) -> bool:
        """Take a job out; False if it does not wait here. Its owner's others move up."""
        with self._lock:
            for line in self._lines.values():
                for entry in line.jobs:
                    if entry[1].job_id == job_id:
                        line.jobs.remove(entry)
                        return True
        return False

    def waiting(self) -> list[Job]:
        """As they will run."""
        with self._lock:
            return self._in_order()

    def order(self) -> tuple[str, ...]:
        """Ids of the running jobs, the first that began first, and of the waiting ones in order."""
        with self._lock:
            return (*self._running, *(job.job_id for job in self._in_order()))

    def _in_order(self) -> list[Job]:
        places = [
            (line.turn + later, arrival, job)
            for line in self._lines.values()
            for later, (arrival, job) in enumerate(line.jobs)
        ]
        return [job for *_, job in sorted(places, key=lambda place: place[:2])]
