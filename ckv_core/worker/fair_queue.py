"""What waits for a worker: jobs, for which users take turns, and models to load. No torch."""

import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import count

from ckv_core.worker.messages import Job, ModelStatus, Warm


@dataclass(slots=True)
class _Line:
    """What one user has waiting."""

    turn: int  # of the first job; each further one is a turn later
    # Each with its number in the order of arrival.
    jobs: deque[tuple[int, Job]] = field(default_factory=deque)


class FairQueue:
    """Round after round each user has one turn, whoever came first within a round; thread-safe.

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


KEPT = 4
REFUSED_S = 600.0  # a model that hung is not loaded ahead for so long; a run may try
PUT_OFF = "{model} is not loaded ahead, for others are; it is loaded when a run asks for it."


class Warms:
    """The newest few wishes, the oldest of them first. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Warm] = OrderedDict()
        self._refused: dict[str, tuple[float, str]] = {}

    def add(self, warm: Warm) -> ModelStatus | None:
        """Keep a wish; what to tell if this or another model will not be loaded for it."""
        until, sentence = self._refused.get(warm.model, (0.0, ""))
        if time.monotonic() < until:
            return ModelStatus(warm.model, False, sentence, failed=True)
        self._waiting.pop(warm.model, None)
        self._waiting[warm.model] = warm
        if len(self._waiting) <= KEPT:
            return None
        model, _ = self._waiting.popitem(last=False)
        return ModelStatus(model, False, PUT_OFF.format(model=model))

    def take(self) -> Warm | None:
        return self._waiting.popitem(last=False)[1] if self._waiting else None

    def remove(self, model: str) -> bool:
        """Give a wish up; False if there is none."""
        return self._waiting.pop(model, None) is not None

    def refuse(self, model: str, sentence: str) -> None:
        """Do not try this model again for a while; the sentence tells why."""
        now = time.monotonic()
        self._refused = {name: kept for name, kept in self._refused.items() if now < kept[0]}
        self._refused[model] = (now + REFUSED_S, sentence)
