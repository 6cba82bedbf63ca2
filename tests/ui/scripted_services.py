"""Services whose worker plays scripts instead of running a model, and waiting for their runs."""

import time
from collections.abc import AsyncIterator, Callable
from functools import partial

from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker.client import WorkerClient
from ui.services.services import RunSnapshot, Services

TIMEOUT_S = 60.0  # for a busy machine; only a test that fails waits so long
ENDLESS = "steps 1000000"
make_client = partial(
    WorkerClient,
    runner="tests.ckv_core.worker.scripted_runner:ScriptedRunner",
    counter="tests.ckv_core.worker.scripted_runner:ScriptedRunner",
    cancel_grace_s=0.5,
)


def request(script: str, model: str = "tiny") -> CompareRequest:
    return CompareRequest(context="one two three", question=script, model=model)


def wait_until(services: Services, slug: str, wanted: Callable[[RunSnapshot], bool]) -> RunSnapshot:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        view = services.snapshot(slug)
        if wanted(view):
            return view
        time.sleep(0.01)
    raise AssertionError(f"still {services.snapshot(slug)}")


def end_of(services: Services, slug: str) -> RunSnapshot:
    return wait_until(services, slug, lambda view: view.is_final)


def finished(services: Services, script: str) -> str:
    """The slug of a run that was played to its end."""
    return end_of(services, services.start_run(request(script))).slug


def generating(view: RunSnapshot) -> bool:
    return bool(view.result.variants and view.result.variants[0].text)


def worker_pid(services: Services) -> int:
    pid = services._client.worker_pid
    assert pid is not None
    return pid


async def collect(views: AsyncIterator[RunSnapshot]) -> list[RunSnapshot]:
    return [view async for view in views]
