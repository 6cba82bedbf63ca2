"""The client against real worker processes that play scripts."""

import operator
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import psutil
import pytest

from ckv_core.records.events import RunPrepared
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import PreviewRequest
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import Job, JobEnd, JobEvent, ModelStatus, Reply
from tests.ckv_core.worker.reply_log import Log
from tests.processes import PATIENCE_S, wait_for

RUNNER = "tests.ckv_core.worker.scripted_runner:ScriptedRunner"
CLOSE_S = 6.0  # a sixth of it is spent on asking a worker that hangs


def made_client(on_reply, **changes) -> WorkerClient:
    client = WorkerClient(on_reply, **{"runner": RUNNER} | changes)
    client.start()
    return client


class Shared:
    """A client of many tests, whose replies go to the log of the one that runs."""

    def __init__(self, cancel_grace_s: float) -> None:
        self.log = Log()
        self.client = made_client(self._take, cancel_grace_s=cancel_grace_s)

    def _take(self, reply: Reply) -> None:
        self.log(reply)

    def lend(self, log: Log) -> Iterator[WorkerClient]:
        self.log = log
        wait_for_worker(self.client)
        yield self.client
        for name in self.client.order():
            self.client.cancel(name)
        wait_for(lambda: not self.client.order())


@pytest.fixture(scope="module", autouse=True)
def no_thread_outlives_its_client():
    others = {*threading.enumerate()}
    yield
    wait_for(
        lambda: not any(t.name.startswith("worker-") for t in {*threading.enumerate()} - others)
    )


@pytest.fixture(scope="module")
def patient_one():
    shared = Shared(PATIENCE_S)
    with closing(shared.client):
        yield shared


@pytest.fixture(scope="module")
def hasty_one():
    shared = Shared(0.2)
    with closing(shared.client):
        yield shared


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def client(patient_one, log):
    """One that waits for a worker to stop, however slow the machine is."""
    yield from patient_one.lend(log)


@pytest.fixture
def hasty(hasty_one, log):
    """One that ends a worker which does not stop at once."""
    yield from hasty_one.lend(log)


def job(script: str, job_id: str, model: str = "tiny") -> Job:
    return Job(job_id, RunRequest(context="one two three", question=script, model=model))


def wait_for_worker(client: WorkerClient, other_than: int | None = None) -> int:
    wait_for(lambda: client.worker_pid not in (None, other_than))
    assert client.worker_pid is not None
    return client.worker_pid


def statuses(log: Log, model: str) -> list[ModelStatus]:
    return [r for r in log.replies if isinstance(r, ModelStatus) and r.model == model]


# --- jobs, and workers that are lost --------------------------------------------------------


def test_a_jobs_replies_go_to_its_own_listener(client, log):
    own = Log()
    client.submit(job("steps 2", "a"), own)
    client.submit(job("steps 2", "b"))
    assert (own.end_of("a"), log.end_of("b")) == (JobEnd("a"), JobEnd("b"))
    assert {r.job_id for r in own.replies} == {"a"}
    assert not any(getattr(r, "job_id", "") == "a" for r in log.replies)


@pytest.mark.parametrize(
    ("script", "sent", "reasons"),
    [
        ("steps 100000", signal.SIGKILL, ("SIGKILL", "memory")),
        ("hang", signal.SIGTERM, ("SIGTERM",)),
        ("exit 7", None, ("exit code 7",)),
    ],
    ids=["killed", "terminated", "by itself"],
)
def test_a_lost_worker_fails_its_job_with_the_reason_and_the_queue_goes_on(
    client, log, script, sent, reasons
):
    pid = wait_for_worker(client)
    client.submit(job(script, "a"))
    client.submit(job("steps 2", "b"))
    log.start_of("a")
    if sent:
        os.kill(pid, sent)
    said = log.failure_of("a")
    assert all(reason in said for reason in reasons)
    assert log.end_of("b") == JobEnd("b")
    assert client.worker_pid != pid


def test_ctrl_c_reaches_the_worker_without_effect(client, log):
    client.submit(job("steps 20", "a"))
    log.start_of("a")
    os.kill(wait_for_worker(client), signal.SIGINT)
    assert log.end_of("a") == JobEnd("a")


@pytest.mark.slow
def test_kills_at_random_moments_lose_no_job(client, log):
    moments = random.Random(10)
    for number in range(6):
        name = f"job{number}"
        pid = wait_for_worker(client)
        client.submit(job("steps 1000000", name))
        if number % 3:
            log.start_of(name)
        time.sleep(moments.uniform(0, 0.15))
        os.kill(pid, signal.SIGKILL)
        assert log.failure_of(name)
        wait_for_worker(client, other_than=pid)
    client.submit(job("steps 1", "last"))
    assert log.end_of("last") == JobEnd("last")
    ends = [r.job_id for r in log.replies if isinstance(r, JobEnd)]
    assert len(ends) == len(set(ends)) == 7


def test_a_worker_that_cannot_start_fails_each_job(log, monkeypatch):
    monkeypatch.setattr("ckv_core.worker.client.PAUSE_S", 0.1)
    broken = "tests.ckv_core.worker.scripted_runner:BrokenRunner"
    with closing(made_client(log, runner=broken)) as client:
        for name in "ab":
            client.submit(job("steps 1", name))
        for name in "ab":
            assert "exit code 1" in log.failure_of(name)


def test_a_reply_that_cannot_be_taken_in_stops_nothing(log):
    def on_reply(reply: Reply) -> None:
        log(reply)
        raise RuntimeError("broken listener")

    with closing(made_client(on_reply)) as client:
        client.submit(job("steps 1", "a"))
        assert log.end_of("a") == JobEnd("a")


# --- cancelling -----------------------------------------------------------------------------


def test_cancelling_a_queued_job_removes_it_at_once(client, log):
    client.submit(job("steps 100000", "a"))
    client.submit(job("steps 1", "b"))
    client.cancel("b")
    assert log.end_of("b") == JobEnd("b", "cancelled")
    client.cancel("a")
    assert log.end_of("a") == JobEnd("a", "cancelled")
    assert not any(isinstance(r, JobEvent) and r.job_id == "b" for r in log.replies)


def test_a_job_that_does_not_react_is_cancelled_by_force(hasty, log, tmp_path):
    hangs = tmp_path / "hangs"
    hasty.submit(job(f"hang {hangs}", "a"))
    hasty.submit(job("steps 1", "b"))
    pid = wait_for_worker(hasty)
    wait_for(hangs.exists)  # a cancel before it hangs would be heard
    hasty.cancel("a")
    hasty.cancel("a")
    assert log.end_of("a") == JobEnd("a", "cancelled")
    assert log.end_of("b") == JobEnd("b")
    assert hasty.worker_pid != pid


def test_a_stopped_process_is_cancelled_by_force_and_a_job_bigger_than_its_pipe_blocks_nobody(
    hasty, log
):
    wait_for(lambda: hasty._is_ready)  # else the job would wait, not be sent
    os.kill(wait_for_worker(hasty), signal.SIGSTOP)
    hasty.submit(Job("a", RunRequest(context="word " * 800_000, question="steps 1")))
    hasty.cancel("a")
    assert log.end_of("a") == JobEnd("a", "cancelled")


def test_cancelling_what_is_over_or_unknown_does_nothing(client, log):
    client.submit(job("steps 1", "a"))
    log.end_of("a")
    client.cancel("a")
    client.cancel("nobody")
    client.submit(job("steps 1", "b"))
    assert log.end_of("b") == JobEnd("b")
    assert sum(isinstance(r, JobEnd) for r in log.replies) == 2


# --- previews -------------------------------------------------------------------------------


def preview(script: str, job_id: str) -> Job:
    return Job(job_id, PreviewRequest(run=job(script, job_id).request))


def test_a_preview_gives_way_to_a_run_that_comes_and_begins_again_after_it(client, log):
    client.submit(preview("steps 50", "p"))
    log.wait(lambda r: isinstance(r, JobEvent) and isinstance(r.event, RunPrepared))
    client.submit(job("steps 2", "a"))
    log.end_of("a")
    assert not any(isinstance(r, JobEnd) and r.job_id == "p" for r in log.replies)
    assert log.end_of("p") == JobEnd("p")
    events = [r.event for r in log.replies if isinstance(r, JobEvent) and r.job_id == "p"]
    begun = [event for event in events if isinstance(event, RunPrepared)]
    assert len(begun) == 2


def test_a_preview_waits_for_all_runs_and_counts_in_no_order(client, log):
    client.submit(job("steps 3", "a"))
    client.submit(preview("steps 1", "p"))
    client.submit(job("steps 1", "b"))
    assert "p" not in client.order()
    log.end_of("p")
    assert [r.job_id for r in log.replies if isinstance(r, JobEnd)] == ["a", "b", "p"]


def test_a_preview_that_gave_way_can_still_be_cancelled(client, log):
    client.submit(preview("steps 100000", "p"))
    log.start_of("p")
    client.submit(job("steps 20", "a"))
    client.cancel("p")
    assert log.end_of("p") == JobEnd("p", "cancelled")
    assert log.end_of("a") == JobEnd("a")


# --- models that are loaded ahead -----------------------------------------------------------


def test_a_warm_model_is_reported_and_its_loss_too(client, log):
    client.warm("tiny")
    log.wait(lambda r: isinstance(r, ModelStatus) and r.ready)
    os.kill(wait_for_worker(client), signal.SIGKILL)
    lost = log.wait(lambda r: isinstance(r, ModelStatus) and "SIGKILL" in r.message)
    assert not lost.ready
    assert not lost.failed


def test_a_model_that_hangs_costs_its_worker(client, log):
    pid = wait_for_worker(client)
    client.warm("stuck")
    failed = log.wait(lambda r: isinstance(r, ModelStatus) and r.model == "stuck" and r.failed)
    assert "Reading the config of stuck took longer than 0 s" in failed.message
    assert not failed.loading
    client.submit(job("steps 1", "a"))
    assert log.end_of("a") == JobEnd("a")
    assert client.worker_pid != pid
    assert statuses(log, "stuck")[-1] == failed


def test_a_run_whose_model_hangs_fails_with_the_step_and_the_next_one_runs(client, log):
    pid = wait_for_worker(client)
    client.submit(job("steps 1", "a", model="stuck too"))
    client.submit(job("steps 1", "b"))
    assert log.failure_of("a").startswith("Reading the config of stuck took longer than")
    assert log.end_of("b") == JobEnd("b")
    assert client.worker_pid != pid


def test_a_run_does_not_wait_for_another_model_that_is_loaded_ahead(client, log):
    client.warm("slow")
    wait_for(lambda: statuses(log, "slow"))
    client.submit(job("steps 1", "a"))
    assert log.end_of("a") == JobEnd("a")
    cancelled = ModelStatus("slow", False, "Loading slow was cancelled.")
    assert statuses(log, "slow")[-1] == cancelled


def test_a_run_of_the_model_that_is_loaded_ahead_waits_for_it(client, log):
    client.warm("slow 20")
    wait_for(lambda: statuses(log, "slow 20"))
    client.submit(job("steps 1", "a", model="slow 20"))
    assert log.end_of("a") == JobEnd("a")
    assert not any("cancelled" in status.message for status in statuses(log, "slow 20"))


def test_one_load_ahead_waits_the_newest_and_can_be_cancelled_also_before_it_starts(client, log):
    client.warm("slow")
    wait_for(lambda: statuses(log, "slow"))  # it is being loaded, so the others wait
    for model in ("earlier", "later"):
        client.warm(model)
    put_off = ModelStatus("earlier", False, "earlier is loaded when a run needs it.")
    log.wait(partial(operator.eq, put_off))
    for model in ("later", "slow"):
        client.cancel_warm(model)
        cancelled = ModelStatus(model, False, f"Loading {model} was cancelled.")
        log.wait(partial(operator.eq, cancelled))


# --- counts, the end -----------------------------------------------------------------------


def test_close_ends_a_hanging_worker_and_cancels_every_job(log):
    client = made_client(log)
    client.submit(job("hang", "a"))
    client.submit(job("steps 1", "b"))
    log.start_of("a")
    pid = wait_for_worker(client)
    started = time.monotonic()
    client.close(CLOSE_S)
    assert time.monotonic() - started < CLOSE_S
    assert not psutil.pid_exists(pid)
    assert log.end_of("a") == JobEnd("a", "cancelled")
    assert log.end_of("b") == JobEnd("b", "cancelled")


def test_close_during_start_up_leaves_no_process(log):
    client = made_client(log)
    pid = wait_for_worker(client)
    client.close(CLOSE_S)
    assert not psutil.pid_exists(pid)
