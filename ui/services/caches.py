"""Kept compressed caches in the app: files of their owners, which its worker makes and reads."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal
from uuid import uuid4

from ckv_core.errors import ConfigError, StorageError
from ckv_core.records.events import Generated, Progress
from ckv_core.records.kept_caches import KeptEntry, KeptFolder, read_record
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import AskRequest, KeepRequest
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import Job, JobEnd, JobEvent, Reply
from ui.accounts.access import Access
from ui.services.library import Room

WATCH_INTERVAL_S = 0.1
MOST_ENDED = 64  # whose answers are remembered
GONE = "The app no longer remembers this; ask again."

State = Literal["queued", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheJob:
    """A cache that is being kept, or a question to one; a new one with every change.

    Attributes:
        question: empty where a cache is being kept.
        progress: None before it runs, and once it is over.
        text: of the answer so far.
        reason: why it failed.
    """

    job_id: str
    name: str
    owner: str | None
    question: str = ""
    state: State = "queued"
    progress: Progress | None = None
    text: str = ""
    reason: str = ""

    @property
    def is_final(self) -> bool:
        return self.state not in ("queued", "running")

    def after(self, reply: Reply) -> "CacheJob":
        match reply:
            case JobEvent(event=Progress() as event):
                return replace(self, state="running", progress=event)
            case JobEvent(event=Generated() as event):
                return replace(self, state="running", text=event.texts[0])
            case JobEnd():
                return replace(self, state=reply.state, progress=None, reason=reply.reason)
            case _:
                return self


class Caches:
    """All that pages know of kept caches; any thread may call any method.

    Every method raises AccessError for who may not do it, and ConfigError for a name that is none
    of the viewer's.
    """

    def __init__(self, access: Access, room: Room, worker: WorkerClient) -> None:
        self._access, self._room, self._worker = access, room, worker
        self._lock = threading.Lock()
        self._jobs: dict[str, CacheJob] = {}  # oldest first

    # --- files --------------------------------------------------------------------------------

    def entries(self) -> list[KeptEntry]:
        """The viewer's, by name."""
        return KeptFolder(self._access.user()).entries()

    def path(self, name: str) -> Path:
        """A cache's file, to be given away."""
        return KeptFolder(self._access.user()).find(name)

    def add(self, name: str, data: bytes) -> KeptEntry:
        """Keep a cache made elsewhere; the first question to it checks its tensors."""
        folder = self._own_folder()
        self._room.check(self._access.user(), len(data))
        folder.add(name, lambda path: path.write_bytes(data))
        return folder.entry(name)

    def delete(self, name: str) -> None:
        self._own_folder().delete(name)

    # --- jobs ---------------------------------------------------------------------------------

    def keep(self, run: RunRequest, index: int, name: str) -> str:
        """Have the cache of one variant of a run kept; returns the job's id."""
        folder = self._own_folder()
        if not 0 <= index < len(run.variants):
            raise ConfigError("This run has no such variant; reload the page.")
        self._room.check(self._access.user())
        one = replace(run, variants=(run.variants[index],), own_indices=())
        request = KeepRequest(run=one, path=str(folder.free(name)))
        request.comparison()  # refuses what is wrong
        return self._submit(name, request)

    def ask(self, name: str, question: str, max_new_tokens: int = 64, device: str = "auto") -> str:
        """Have a question answered; returns the job's id."""
        path = self._own_folder().find(name)
        record = read_record(path)
        request = AskRequest(
            path=str(path),
            question=question,
            model=record.model.name,
            device=device,
            dtype=record.model.dtype,
            max_new_tokens=max_new_tokens,
        )
        request.validate()
        return self._submit(name, request)

    def answers(self, name: str) -> list[CacheJob]:
        """The viewer's questions to a cache since the app began, newest first."""
        owner = self._access.user()
        with self._lock:
            jobs = [job for job in self._jobs.values() if job.owner == owner]
        return [job for job in reversed(jobs) if job.name == name and job.question]

    def job(self, job_id: object) -> CacheJob:
        """One of the viewer's; a client may send anything as its id."""
        owner = self._access.user()
        with self._lock:
            job = self._jobs.get(str(job_id))
        if job is None or job.owner != owner:
            raise StorageError(GONE)
        return job

    async def watch(self, job_id: object) -> AsyncIterator[CacheJob]:
        """Follow a job: as it is now, its changes, its end."""
        seen: CacheJob | None = None
        while True:
            job = self.job(job_id)
            if job is not seen:
                yield job
                seen = job
            if job.is_final:
                return
            await asyncio.sleep(WATCH_INTERVAL_S)

    def cancel(self, job_id: object) -> None:
        self._access.user(change=True)
        self._worker.cancel(self.job(job_id).job_id)

    # --- parts --------------------------------------------------------------------------------

    def _own_folder(self) -> KeptFolder:
        return KeptFolder(self._access.user(change=True))

    def _submit(self, name: str, request: KeepRequest | AskRequest) -> str:
        owner = self._access.user(change=True)
        question = request.question if isinstance(request, AskRequest) else ""
        job = CacheJob(job_id=uuid4().hex, name=name, owner=owner, question=question)
        with self._lock:
            going = [each.owner for each in self._jobs.values() if not each.is_final]
            limits = self._room.limits
            limits.check_queue(len(going), None if owner is None else going.count(owner))
            over = [each.job_id for each in self._jobs.values() if each.is_final]
            for oldest in over[: max(0, len(over) - MOST_ENDED)]:
                del self._jobs[oldest]
            self._jobs[job.job_id] = job
        self._worker.submit(Job(job.job_id, request, owner), partial(self._take, job.job_id))
        return job.job_id

    def _take(self, job_id: str, reply: Reply) -> None:
        with self._lock:
            if (job := self._jobs.get(job_id)) is not None:
                self._jobs[job_id] = job.after(reply)
