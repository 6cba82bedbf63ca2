"""Runs on a stand-in of ZeroGPU: other processes, of which none is there after its call."""

import os
import signal
from contextlib import closing
from functools import partial

import psutil
import pytest
import torch

from ckv_core.models.steps import silent
from ckv_core.records.events import Progress
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import KeepRequest, PreviewRequest
from ckv_core.worker import zero
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import Job, JobEnd, JobEvent, ModelStatus
from ckv_core.worker.process import WorkerProcess
from ckv_core.worker.runner import EngineRunner
from tests.ckv_core.worker.reply_log import Log
from tests.factories.events import folded
from tests.factories.spaces import VISITOR, Spaces
from tests.processes import assert_gone, wait_for

SCRIPTS = "tests.ckv_core.worker.scripted_runner:ScriptedRunner"
ZERO = {"SPACES_ZERO_GPU": "true"}


class OneThread(EngineRunner):
    """A process that is forked must not wait for threads that were not."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        super().__init__()


@pytest.fixture
def spaces(monkeypatch):
    spaces = Spaces()
    spaces.install(monkeypatch)
    monkeypatch.setattr(zero, "BEAT_S", 0.02)
    return spaces


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def client(spaces, log):
    make_worker = zero.zero_worker(ZERO)
    with closing(WorkerClient(log, runner=SCRIPTS, make_worker=make_worker)) as client:
        client.start()
        yield client
    assert_gone(spaces.pids)


def job(script: str, name: str, **changes) -> Job:
    return Job(name, RunRequest(context="one two three", question=script, model="tiny", **changes))


def details(log: Log, name: str) -> list[str]:
    events = [r.event for r in log.replies if isinstance(r, JobEvent) and r.job_id == name]
    return [event.detail for event in events if isinstance(event, Progress)]


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_elsewhere_workers_are_plain_processes(spaces, value):
    assert zero.zero_worker({"SPACES_ZERO_GPU": value}) is WorkerProcess
    assert zero.zero_worker({}) is WorkerProcess
    assert not spaces.starts


def test_without_the_package_workers_are_plain_processes():
    assert zero.zero_worker(ZERO) is WorkerProcess  # it is no requirement of the app


def test_each_run_has_a_gpu_of_its_own_and_of_its_visitor(client, spaces, log):
    assert spaces.starts == 1
    for visitor in ("ann", "ben"):
        VISITOR.set(visitor)
        client.submit(job("steps 3", visitor))
    VISITOR.set("")
    for visitor in ("ann", "ben"):
        assert log.end_of(visitor) == JobEnd(visitor)
        assert log.result_of(visitor).finished
        assert not any("CPU" in each for each in details(log, visitor))
    assert [visitor for visitor, _ in spaces.lent] == ["ann", "ben"]
    assert len({*spaces.pids, os.getpid(), client.worker_pid}) == 4
    assert_gone(spaces.pids)
    assert not any(isinstance(reply, ModelStatus) for reply in log.replies)  # none stays loaded


def test_a_gpu_gives_the_same_result_as_this_process(spaces, model_folder):
    request = RunRequest(
        context="The quick brown fox jumps over the lazy dog. " * 20,
        question="Who jumps?",
        model=model_folder,
        variants=("full", "snapkv+critical:budget=64"),
        max_new_tokens=4,
    )
    log, here = Log(), OneThread()
    given = {"runner": f"{__name__}:OneThread", "make_worker": zero.zero_worker(ZERO)}
    with closing(WorkerClient(log, **given)) as client:
        client.start()
        client.submit(Job("a", request))
        assert log.end_of("a") == JobEnd("a")
    here.load(model_folder, "auto", "auto", silent)
    expected = folded(here.run(request, bool))
    for one, other in zip(log.result_of("a").variants, expected.variants, strict=True):
        assert (one.token_ids, one.receipt) == (other.token_ids, other.receipt)
        assert (one.retained and one.retained.bits) == (other.retained and other.retained.bits)
    assert len(spaces.lent) == 1


@pytest.mark.parametrize(
    "other",
    [
        job("steps 2", "a", device="cpu"),
        Job("a", PreviewRequest(run=job("steps 2", "").request)),
    ],
    ids=["cpu", "preview"],
)
def test_what_needs_no_gpu_uses_up_none(client, spaces, log, other):
    client.submit(other)
    assert log.end_of("a") == JobEnd("a")
    client.warm("ahead")
    log.wait(lambda r: isinstance(r, ModelStatus) and r.model == "ahead" and r.ready)
    assert not spaces.lent


def test_where_the_quota_ends_the_cpu_computes_and_says_so(client, spaces, log):
    spaces.refusal = "You have exceeded your ZeroGPU quota (30s requested vs. 2s left)."
    client.submit(job("steps 2", "a"))
    client.submit(job("steps 2", "b", device="cuda"))
    assert log.end_of("a") == JobEnd("a")
    assert log.result_of("a").finished
    assert any("so the CPU computes this: You have exceeded" in each for each in details(log, "a"))
    assert "2s left). Choose device auto or cpu" in log.failure_of("b")
    spaces.refusal = ""
    client.submit(job("steps 2", "c"))
    assert log.end_of("c") == JobEnd("c")
    assert len(spaces.pids) == 1


@pytest.mark.parametrize("script", ["steps 100000", "hang", "kill"])
def test_a_gpu_that_is_taken_back_fails_its_run_alone(client, spaces, log, script):
    client.submit(job(script, "a"))
    if script != "kill":
        log.wait(lambda r: isinstance(r, JobEvent) and getattr(r.event, "stage", "") == "prefill")
        os.kill(spaces.pids[0], signal.SIGKILL)
    assert "took its GPU back before the run ended: GPU task aborted." in log.failure_of("a")
    before = client.worker_pid
    client.submit(job("steps 2", "b"))
    assert log.end_of("b") == JobEnd("b")
    assert client.worker_pid == before


def test_a_run_is_cancelled_wherever_it_is(client, spaces, log):
    client.submit(job("steps 100000", "a"))
    log.start_of("a")
    client.cancel("a")
    assert log.end_of("a") == JobEnd("a", "cancelled")
    spaces.refusal = "no"
    client.submit(job("steps 100000", "b"))
    log.wait(lambda r: isinstance(r, JobEvent) and getattr(r.event, "stage", "") == "decode")
    client.cancel("b")
    assert log.end_of("b") == JobEnd("b", "cancelled")


def test_a_run_that_does_not_stop_is_ended(spaces, log):
    make_worker = zero.zero_worker(ZERO)
    given = {"runner": SCRIPTS, "make_worker": make_worker, "cancel_grace_s": 0.2}
    with closing(WorkerClient(log, **given)) as client:
        client.start()
        client.submit(job("spin", "a"))
        wait_for(lambda: spaces.pids)
        log.wait(lambda r: isinstance(r, JobEvent) and getattr(r.event, "stage", "") == "prefill")
        client.cancel("a")
        assert log.end_of("a") == JobEnd("a", "cancelled")
        assert_gone(spaces.pids)


def test_the_app_closes_while_a_gpu_works(spaces, log):
    client = WorkerClient(log, runner=SCRIPTS, make_worker=zero.zero_worker(ZERO))
    client.start()
    client.submit(job("hang", "a"))
    wait_for(lambda: spaces.pids)
    worker = client.worker_pid
    client.close()
    assert log.end_of("a") == JobEnd("a", "cancelled")
    assert_gone([*spaces.pids, worker])


def test_the_forked_process_holds_no_connection_of_the_app(client, spaces, log, tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
        client.submit(job("hang", "a"))
        log.wait(lambda r: isinstance(r, JobEvent) and getattr(r.event, "stage", "") == "prefill")
        there.close()
        here.settimeout(5)
        assert here.recv(1) == b""  # the end, though a process was forked meanwhile
        here.close()
        held = psutil.Process(spaces.pids[0]).net_connections("tcp")
        assert server.getsockname()[1] not in {each.laddr.port for each in held}


def test_the_time_that_is_asked_for_grows_with_the_text_and_has_an_end():
    def asked(words: int, new: int = 64):
        run = RunRequest(context="word " * words, max_new_tokens=new)
        return zero.seconds("", Job("a", run))

    assert zero.LEAST_S < asked(10) < asked(10_000) < asked(20_000) < zero.MOST_S
    assert asked(10) < asked(10, 512)
    assert asked(1_000_000) == zero.MOST_S
    run = RunRequest(context="word " * 10_000, variants=("snapkv",))
    keep = partial(KeepRequest, path="x")
    assert zero.seconds("", Job("a", keep(run=run))) == zero.seconds("", Job("a", run))


def test_in_the_apps_own_process_nothing_runs():
    with pytest.raises(Exception, match="own process"):
        next(zero.on_gpu(SCRIPTS, job("steps 2", "a")))
