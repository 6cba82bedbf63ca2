"""Previews of a stored run at another budget or alpha: its worker computes, nothing is stored."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from ckv_core.errors import CkvError, ConfigError
from ckv_core.records.events import RunEvent
from ckv_core.records.run_request import TOKEN_RANGE, RunRequest
from ckv_core.records.work_requests import PreviewRequest, WhyRequest
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import Job, JobEnd, JobEvent, Reply
from ui.accounts.access import Access, AccessError
from ui.services.live_runs import RunSnapshot

NOT_LIVE = "Only a finished run of one sample at one budget, with the full cache, can be previewed."
REPLACED = "Another preview of yours took the place of this one."
WRONG_WHY = "Send a variant's number, and evidence as an array of tokens:FIRST-LAST."
WRONG = "A preview takes budget and alpha as text, and nothing else."
VALUES = {"budget": "budgets", "alpha": "alphas"}


class Previews:
    """One preview a viewer at a time: a newer one ends the one before.

    Who may start runs may preview any run that they may read.
    """

    def __init__(
        self,
        access: Access,
        worker: WorkerClient,
        read: Callable[[str], RunSnapshot],
        start: Callable[[RunRequest], str],
    ) -> None:
        """`read` gives a run of one sample, `start` stores and queues one."""
        self._access, self._worker = access, worker
        self._read, self._start = read, start
        self._jobs: dict[str, str] = {}  # the newest of each viewer; of the event loop alone

    def why(self, slug: str, given: Mapping[str, Any]) -> WhyRequest:
        """The request to put back what a variant of a stored run evicted, as a client sent it.

        Raises:
            CkvError: the viewer may not use it so, or the values are wrong.
        """
        run, _ = self.request(slug, {})
        index, evidence = given.get("variant"), given.get("evidence", [])
        specs = {at: variant.spec for at, variant in enumerate(run.result.variants)}
        spec = specs.get(index) if type(index) is int else None
        if spec is None or not isinstance(evidence, list) or not all(map(_is_range, evidence)):
            raise ConfigError(WRONG_WHY)
        wanted = WhyRequest(run=run.request, variant=spec, evidence=tuple(evidence))
        wanted.comparison()
        return wanted

    def request(self, slug: str, given: object) -> tuple[RunSnapshot, RunRequest]:
        """A stored run, and its request with the values that a client sent.

        Raises:
            CkvError: the viewer may not use it so, or the values are wrong.
        """
        self._access.user(change=True)
        run = self._read(slug)
        if not is_live(run):
            raise ConfigError(NOT_LIVE)
        if not isinstance(given, Mapping) or not set(given) <= set(VALUES):
            raise ConfigError(WRONG)
        changes: dict[str, Any] = {VALUES[name]: (value,) for name, value in given.items()}
        request = replace(run.request, **changes)
        request.validate()
        return run, request

    def may_start(self) -> bool:
        """Whether the viewer may use the worker."""
        try:
            self._access.user(change=True)
        except AccessError:
            return False
        return True

    def viewer(self, address: str) -> str:
        """The name under which a viewer's previews replace one another: the user's, or a place."""
        return self._access.user(change=True) or f"at {address}"

    async def events(
        self, request: PreviewRequest | WhyRequest, viewer: str
    ) -> AsyncGenerator[RunEvent]:
        """The events of a run that is not stored; from RunPrepared again after it gave way.

        It is cancelled when nobody reads on.

        Args:
            request: about a stored run.
            viewer: whose earlier preview ends.

        Raises:
            CkvError: why it failed.
        """
        loop, replies = asyncio.get_running_loop(), asyncio.Queue[Reply]()

        def take(reply: Reply) -> None:
            loop.call_soon_threadsafe(replies.put_nowait, reply)

        job = Job(uuid4().hex, request, viewer)
        if before := self._jobs.get(viewer):
            self._worker.cancel(before)
        self._jobs[viewer] = job.job_id
        self._worker.submit(job, take)
        try:
            while not isinstance(reply := await replies.get(), JobEnd):
                if isinstance(reply, JobEvent):
                    yield reply.event
            if reply.state != "done":
                raise CkvError(reply.reason or REPLACED)
        finally:
            self._worker.cancel(job.job_id)
            if self._jobs.get(viewer) == job.job_id:
                del self._jobs[viewer]

    def save(self, slug: str, given: object) -> str:
        """Start the run that was previewed, and store it; returns its slug."""
        _, request = self.request(slug, given)
        return self._start(request)


def _is_range(value: object) -> bool:
    return isinstance(value, str) and TOKEN_RANGE.fullmatch(value) is not None


def is_live(run: RunSnapshot) -> bool:
    """Whether it is over, and one sample at one budget, beside the full cache."""
    is_one = run.request.kind == "compare"
    return is_one and run.state == "done" and run.request.reference
