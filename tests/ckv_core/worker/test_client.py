"""The client against real worker processes that play scripts."""

import operator
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import (
    Job,
    JobCancelled,
    JobDone,
    JobEvent,
    JobFailed,
    ModelStatus,
    Reply,
)
from tests.ckv_core.worker.reply_log import ENDS, TIMEOUT_S, Log, wait_for_file

RUNNER = "tests.ckv_core.worker.scripted_runner:ScriptedRunner"
CLOSE_S = 12.0  # a sixth of it is spent on asking a worker that hangs


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def client(log: Log) -> Iterator[WorkerClient]:
    """One that waits for a worker to stop, however slow the machine is."""
    yield from started_client(log, TIMEOUT_S)


@pytest.fixture
def hasty(log: Log) -> Iterator[WorkerClient]:
    """One that ends a worker which does not stop at once."""
    yield from started_client(log, 0.2)


def started_client(
    log: Log, cancel_grace_s: float, run_limit_s: float | None = None
) -> Iterator[WorkerClient]:
    client = WorkerClient(
        log,
        runner=RUNNER,
        counter=RUNNER,
        cancel_grace_s=cancel_grace_s,
        run_limit_s=run_limit_s,
    )
    client.start()
    yield client
    client.close()
    assert not _worker_threads()


def _worker_threads() -> list[str]:
    """Names of the client's threads that do not end after close."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        names = [t.name for t in threading.enumerate() if t.name.startswith("worker-")]
        if not names:
            return []
        time.sleep(0.01)
    return names


def job(script: str, job_id: str, model: str = "tiny") -> Job:
    return Job(job_id, CompareRequest(context="one two three", question=script, model=model))


def wait_for_worker(client: WorkerClient, other_than: int | None = None) -> int:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        pid = client.worker_pid
        if pid is not None and pid != other_than:
            return pid
        time.sleep(0.01)
    raise AssertionError("no worker in time")


def test_jobs_run_one_after_another_in_the_order_given(client: WorkerClient, log: Log) -> None:
    for name in "abc":
        client.submit(job("steps 2", name))
    log.end_of("c")
    order = [(r.job_id, type(r)) for r in log.replies if isinstance(r, JobEvent | JobDone)]
    assert [name for name, kind in order if kind is JobDone] == ["a", "b", "c"]
    assert [name for name, _ in order] == sorted(name for name, _ in order)


def test_a_killed_worker_fails_its_job_with_the_signal_and_the_queue_goes_on(
    client: WorkerClient, log: Log
) -> None:
    client.submit(job("steps 100000", "a"))
    client.submit(job("steps 2", "b"))
    log.start_of("a")
    pid = wait_for_worker(client)
    os.kill(pid, signal.SIGKILL)
    end = log.end_of("a")
    assert isinstance(end, JobFailed)
    assert "SIGKILL" in end.message
    assert "memory" in end.message
    assert log.end_of("b") == JobDone("b")
    assert client.worker_pid != pid


def test_a_worker_that_kills_itself_fails_only_its_own_job(client: WorkerClient, log: Log) -> None:
    client.submit(job("exit 7", "a"))
    client.submit(job("steps 1", "b"))
    end = log.end_of("a")
    assert isinstance(end, JobFailed)
    assert "exit code 7" in end.message
    assert log.end_of("b") == JobDone("b")


def test_sigterm_to_the_worker_is_a_reason_too(client: WorkerClient, log: Log) -> None:
    client.submit(job("hang", "a"))
    log.start_of("a")
    os.kill(wait_for_worker(client), signal.SIGTERM)
    end = log.end_of("a")
    assert isinstance(end, JobFailed)
    assert "SIGTERM" in end.message


def test_ctrl_c_reaches_the_worker_without_effect(client: WorkerClient, log: Log) -> None:
    client.submit(job("steps 20", "a"))
    log.start_of("a")
    os.kill(wait_for_worker(client), signal.SIGINT)
    assert log.end_of("a") == JobDone("a")


def test_cancelling_a_queued_job_removes_it_at_once(client: WorkerClient, log: Log) -> None:
    client.submit(job("steps 100000", "a"))
    client.submit(job("steps 1", "b"))
    client.cancel("b")
    assert log.end_of("b") == JobCancelled("b")
    client.cancel("a")
    assert log.end_of("a") == JobCancelled("a")
    assert not any(isinstance(r, JobEvent) and r.job_id == "b" for r in log.replies)


def test_a_running_job_is_cancelled_by_the_same_worker(client: WorkerClient, log: Log) -> None:
    client.submit(job("steps 100000", "a"))
    log.start_of("a")
    pid = client.worker_pid
    client.cancel("a")
    assert log.end_of("a") == JobCancelled("a")
    client.submit(job("steps 1", "b"))
    assert log.end_of("b") == JobDone("b")
    assert client.worker_pid == pid


def test_a_job_that_does_not_react_is_cancelled_by_force(
    hasty: WorkerClient, log: Log, tmp_path: Path
) -> None:
    hangs = tmp_path / "hangs"
    hasty.submit(job(f"hang {hangs}", "a"))
    hasty.submit(job("steps 1", "b"))
    pid = wait_for_worker(hasty)
    wait_for_file(hangs)  # a cancel before it hangs would be heard
    hasty.cancel("a")
    hasty.cancel("a")
    assert log.end_of("a") == JobCancelled("a")
    assert log.end_of("b") == JobDone("b")
    assert hasty.worker_pid != pid


def test_a_stopped_process_is_cancelled_by_force(hasty: WorkerClient, log: Log) -> None:
    hasty.submit(job("steps 100000", "a"))
    log.start_of("a")
    os.kill(wait_for_worker(hasty), signal.SIGSTOP)
    hasty.cancel("a")
    assert log.end_of("a") == JobCancelled("a")


def test_a_job_bigger_than_the_pipe_blocks_nobody(hasty: WorkerClient, log: Log) -> None:
    pid = wait_for_worker(hasty)
    os.kill(pid, signal.SIGSTOP)
    hasty.submit(Job("a", CompareRequest(context="word " * 800_000, question="steps 1")))
    hasty.cancel("a")
    assert log.end_of("a") == JobCancelled("a")


def test_cancelling_what_is_over_or_unknown_does_nothing(client: WorkerClient, log: Log) -> None:
    client.submit(job("steps 1", "a"))
    log.end_of("a")
    client.cancel("a")
    client.cancel("nobody")
    client.submit(job("steps 1", "b"))
    assert log.end_of("b") == JobDone("b")
    assert sum(isinstance(r, ENDS) for r in log.replies) == 2


def test_tokens_are_counted_during_a_job(client: WorkerClient, log: Log) -> None:
    client.submit(job("steps 100000", "a"))
    log.start_of("a")
    counted = client.count_tokens(CompareRequest(context="a b c"), TIMEOUT_S)
    assert (counted.tokens, counted.limit, counted.error) == (3, 8_192, "")
    assert not any(isinstance(r, ENDS) for r in log.replies)


def test_a_warm_model_is_reported_and_its_loss_too(client: WorkerClient, log: Log) -> None:
    client.warm("tiny")
    log.wait(lambda r: isinstance(r, ModelStatus) and r.ready)
    os.kill(wait_for_worker(client), signal.SIGKILL)
    lost = log.wait(lambda r: isinstance(r, ModelStatus) and "SIGKILL" in r.message)
    assert isinstance(lost, ModelStatus)
    assert not lost.ready
    assert not lost.failed


def test_a_model_that_hangs_costs_its_worker_and_is_not_tried_again(
    client: WorkerClient, log: Log
) -> None:
    pid = wait_for_worker(client)
    client.warm("stuck")
    failed = log.wait(lambda r: isinstance(r, ModelStatus) and r.model == "stuck" and r.failed)
    assert isinstance(failed, ModelStatus)
    assert "Reading the config of stuck took longer than 0 s" in failed.message
    assert not failed.loading
    client.submit(job("steps 1", "a"))
    assert log.end_of("a") == JobDone("a")
    assert client.worker_pid != pid
    stuck = [r for r in log.replies if isinstance(r, ModelStatus) and r.model == "stuck"]
    assert stuck[-1] == failed
    pid = client.worker_pid
    client.warm("stuck")
    log.wait(lambda r: isinstance(r, ModelStatus) and r == failed and r is not failed)
    assert client.worker_pid == pid


def test_a_run_whose_model_hangs_fails_with_the_step_and_the_next_one_runs(
    client: WorkerClient, log: Log
) -> None:
    client.submit(job("steps 1", "a", model="stuck"))
    client.submit(job("steps 1", "b"))
    end = log.end_of("a")
    assert isinstance(end, JobFailed)
    assert end.message.startswith("Reading the config of stuck took longer than")
    assert log.end_of("b") == JobDone("b")


def test_a_run_does_not_wait_for_another_model_that_is_loaded_ahead(
    client: WorkerClient, log: Log
) -> None:
    client.warm("slow")
    log.wait(lambda r: isinstance(r, ModelStatus) and r.model == "slow")
    client.submit(job("steps 1", "a"))
    assert log.end_of("a") == JobDone("a")
    slow = [r for r in log.replies if isinstance(r, ModelStatus) and r.model == "slow"]
    assert slow[-1] == ModelStatus("slow", False, "Loading slow was cancelled.")


def test_a_run_of_the_model_that_is_loaded_ahead_waits_for_it(
    client: WorkerClient, log: Log
) -> None:
    client.warm("slow")
    log.wait(lambda r: isinstance(r, ModelStatus) and r.model == "slow")
    client.submit(job("steps 1", "a", model="slow"))
    assert log.end_of("a") == JobDone("a")
    assert not any(isinstance(r, ModelStatus) and "cancelled" in r.message for r in log.replies)


def test_loading_ahead_can_be_cancelled_also_before_it_starts(
    client: WorkerClient, log: Log
) -> None:
    for model in ("slow", "later"):
        client.warm(model)
    log.wait(lambda r: isinstance(r, ModelStatus) and r.model == "slow")
    for model in ("later", "slow"):
        client.cancel_warm(model)
        cancelled = ModelStatus(model, False, f"Loading {model} was cancelled.")
        log.wait(partial(operator.eq, cancelled))


def test_a_run_is_cancelled_while_its_model_loads(client: WorkerClient, log: Log) -> None:
    client.submit(job("steps 1", "a", model="slow"))
    log.start_of("a")
    pid = client.worker_pid
    client.cancel("a")
    assert log.end_of("a") == JobCancelled("a")
    assert client.worker_pid == pid


def test_a_run_over_its_time_ends_with_a_sentence_and_waiting_does_not_count(log: Log) -> None:
    for client in started_client(log, TIMEOUT_S, run_limit_s=0.6):
        client.submit(job("steps 100000", "a"))
        client.submit(job("steps 1", "b"))
        end = log.end_of("a")
        assert isinstance(end, JobFailed)
        assert "ended after 0.01 minutes, this app's limit; what it had is kept" in end.message
        assert log.end_of("b") == JobDone("b")


def test_a_run_that_is_over_its_time_and_deaf_ends_with_the_same_sentence(log: Log) -> None:
    for client in started_client(log, 0.2, run_limit_s=0.3):
        client.submit(job("hang", "a"))
        end = log.end_of("a")
        assert isinstance(end, JobFailed)
        assert "this app's limit" in end.message


def test_ready_is_a_worker_that_answers(client: WorkerClient) -> None:
    pid = wait_for_worker(client)
    deadline = time.monotonic() + TIMEOUT_S
    while not client.is_ready(TIMEOUT_S):
        assert time.monotonic() < deadline
    stopped = psutil.Process(pid)
    stopped.suspend()
    while stopped.status() != psutil.STATUS_STOPPED:  # the signal may take its time
        time.sleep(0.01)
    assert not client.is_ready(0.2)
    os.kill(pid, signal.SIGKILL)
    wait_for_worker(client, other_than=pid)


def test_a_worker_that_cannot_start_fails_each_job_and_is_tried_ever_more_rarely(
    log: Log,
) -> None:
    client = WorkerClient(log, runner="tests.ckv_core.worker.scripted_runner:BrokenRunner")
    client.start()
    started = time.monotonic()
    for name in "abc":
        client.submit(job("steps 1", name))
    for name in "abc":
        end = log.end_of(name)
        assert isinstance(end, JobFailed)
        assert "exit code 1" in end.message
    assert time.monotonic() - started > 0.25 + 0.5
    client.close()


def test_close_ends_a_hanging_worker_and_cancels_every_job(log: Log) -> None:
    client = WorkerClient(log, runner=RUNNER, counter=RUNNER)
    client.start()
    client.submit(job("hang", "a"))
    client.submit(job("steps 1", "b"))
    log.start_of("a")
    pid = wait_for_worker(client)
    started = time.monotonic()
    client.close(CLOSE_S)
    assert time.monotonic() - started < CLOSE_S
    assert not psutil.pid_exists(pid)
    assert log.end_of("a") == JobCancelled("a")
    assert log.end_of("b") == JobCancelled("b")


def test_close_during_start_up_leaves_no_process(log: Log) -> None:
    client = WorkerClient(log, runner=RUNNER, counter=RUNNER)
    client.start()
    pid = wait_for_worker(client)
    client.close(CLOSE_S)
    assert not psutil.pid_exists(pid)


def test_a_reply_that_cannot_be_taken_in_stops_nothing(log: Log) -> None:
    def on_reply(reply: Reply) -> None:
        log(reply)
        raise RuntimeError("broken listener")

    client = WorkerClient(on_reply, runner=RUNNER)
    client.start()
    client.submit(job("steps 1", "a"))
    assert log.end_of("a") == JobDone("a")
    client.close()


@pytest.mark.slow
def test_ten_kills_at_random_moments_lose_no_job(client: WorkerClient, log: Log) -> None:
    moments = random.Random(10)
    for number in range(10):
        name = f"job{number}"
        pid = wait_for_worker(client)
        client.submit(job("steps 1000000", name))
        if number % 3:
            log.start_of(name)
        time.sleep(moments.uniform(0, 0.15))
        os.kill(pid, signal.SIGKILL)
        end = log.end_of(name)
        assert isinstance(end, JobFailed)
        wait_for_worker(client, other_than=pid)
    client.submit(job("steps 1", "last"))
    assert log.end_of("last") == JobDone("last")
    ends = [r.job_id for r in log.replies if isinstance(r, ENDS)]
    assert len(ends) == len(set(ends)) == 11
