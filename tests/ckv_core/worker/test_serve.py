"""The worker loop, in this process and over a pipe, with a scripted engine."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from ckv_core.errors import OUT_OF_MEMORY
from ckv_core.methods import plug_ins
from ckv_core.models.steps import STALL_S, STEP_S
from ckv_core.records.events import Progress, RunFinished, RunPrepared
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import AskRequest
from ckv_core.worker.messages import (
    Cancel,
    Deadline,
    Job,
    JobEnd,
    JobEvent,
    LoadRequest,
    ModelStatus,
    Reply,
    Shutdown,
    WorkerReady,
)
from ckv_core.worker.serve import DEVICE_LOST, WorkerLoop
from tests.ckv_core.worker.scripted_runner import FAILURES, PROMPT_S, ScriptedRunner
from tests.factories.kept import kept_bytes
from tests.processes import PATIENCE_S, assert_gone

OUTSIDE = "A step of a method of the package 'some'"


@contextmanager
def served() -> Iterator[Connection]:
    """The app's end of a loop's pipe; waits for the end of the loop, whatever brings it."""
    ours, theirs = Pipe()
    loop = threading.Thread(target=WorkerLoop(theirs, ScriptedRunner).run)
    loop.start()
    yield ours
    loop.join(PATIENCE_S)
    assert not loop.is_alive()
    ours.close()
    # A reader that is still at it would read from the next test's pipe.
    for thread in threading.enumerate():
        if thread.name == "commands":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    theirs.close()


@pytest.fixture
def channel():
    """A loop that is told to stop afterwards."""
    with served() as channel:
        yield channel
        channel.send(Shutdown())


def job(script: str, job_id: str = "a", model: str = "tiny") -> Job:
    return Job(job_id, RunRequest(context="one two three", question=script, model=model))


def receive(channel: Connection) -> Reply:
    """The next reply but those that only say how long something may take."""
    while True:
        assert channel.poll(PATIENCE_S), "no reply in time"
        reply: Reply = channel.recv()
        if not isinstance(reply, Deadline | WorkerReady):
            return reply


def receive_until(channel: Connection, kind: type = JobEnd) -> list[Reply]:
    replies = [receive(channel)]
    while not isinstance(replies[-1], kind):
        replies.append(receive(channel))
    return replies


def test_a_job_streams_its_events_in_order_and_ends_with_done(channel):
    channel.send(job("steps 3"))
    replies = receive_until(channel)
    events = [reply.event for reply in replies if isinstance(reply, JobEvent)]
    assert replies[-1] == JobEnd("a")
    assert events[0] == Progress("load", None, "Loading tiny.")
    prepared = next(i for i, event in enumerate(events) if isinstance(event, RunPrepared))
    assert 0 < prepared < len(events) - 1
    last = events[-1]
    assert isinstance(last, RunFinished)
    assert last.timings_ms["load"] > 0
    assert last.timings_ms["decode"] == 2.0


def test_a_warm_up_reports_each_step_then_ready_and_ends_like_a_job(channel):
    channel.send(Job("warm", LoadRequest("tiny")))
    assert receive_until(channel) == [
        ModelStatus("tiny", False, "Loading tiny.", loading=True),
        ModelStatus("tiny", False, "Reading tiny.", loading=True),
        ModelStatus("tiny", True, "tiny is ready on cpu in float32."),
        JobEnd("warm"),
    ]


def test_what_may_hang_says_first_how_long_it_may_take(channel):
    channel.send(job("steps 1"))
    said = []
    while not isinstance(reply := channel.recv(), JobEnd):
        if isinstance(reply, Deadline):
            said.append((reply.what, reply.limit_s))
        if isinstance(reply, JobEvent) and isinstance(reply.event, RunPrepared):
            assert said[-1] == ("The run", None)
    assert said == [
        ("Loading tiny", STALL_S),
        ("Reading tiny", STEP_S),
        ("Reading the prompt with the model's tokenizer", PROMPT_S),
        ("The run", None),
    ]


@pytest.mark.parametrize("of_cache", [False, True])
def test_each_step_of_another_packages_method_has_a_limit(channel, monkeypatch, tmp_path, of_cache):
    monkeypatch.setattr("ckv_core.worker.serve.packages_of", lambda parts: any(parts) and "'some'")
    (tmp_path / "kept").write_bytes(kept_bytes())
    question = AskRequest(path=str(tmp_path / "kept"), question="steps 3", model="tiny")
    channel.send(Job("a", question) if of_cache else job("steps 3"))
    steps = list(iter(channel.recv, JobEnd("a")))
    for before, event in pairwise(each for each in steps if isinstance(each, Deadline | JobEvent)):
        if isinstance(event, JobEvent) and not isinstance(event.event, Progress):
            assert (before.what, before.limit_s) == (OUTSIDE, plug_ins.STEP_S)
            assert before.of_run


def test_a_lost_gpu_fails_the_job_and_ends_the_worker():
    with served() as channel:
        channel.send(job("device-lost"))
        assert receive_until(channel)[-1] == JobEnd("a", "failed", DEVICE_LOST)


def test_a_model_that_cannot_be_loaded_fails_the_job_with_its_sentence(channel):
    channel.send(job("steps 1", model="missing"))
    replies = receive_until(channel)
    sentence = "No model 'missing' was found; check the name."
    assert replies[-1] == JobEnd("a", "failed", sentence, for_good=True, field="model")
    assert ModelStatus("missing", False, sentence, failed=True) in replies


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("refuse", "Budget 3 is below the protected tokens."),
        *((name, OUT_OF_MEMORY) for name in FAILURES if name.startswith("oom")),
        ("bug", "The run failed (ValueError: first line); the log has the details."),
    ],
)
def test_a_failure_is_one_sentence_and_the_next_job_runs(channel, script, message):
    channel.send(job(script))
    for_good = script == "refuse"  # the others may pass
    assert receive_until(channel)[-1] == JobEnd("a", "failed", message, for_good)
    channel.send(job("steps 1", "b"))
    assert receive_until(channel)[-1] == JobEnd("b")


@pytest.mark.parametrize(
    ("script", "model", "at_work"),
    [
        ("steps 100000", "tiny", JobEvent),
        ("deaf 100000", "tiny", JobEvent),
        ("steps 1", "slow", ModelStatus),
    ],
    ids=["running", "running and deaf", "loading"],
)
def test_cancel_stops_a_job_at_its_next_step(channel, script, model, at_work):
    channel.send(job(script, model=model))
    receive_until(channel, at_work)
    channel.send(Cancel("a"))
    assert receive_until(channel)[-1] == JobEnd("a", "cancelled")


def test_the_loop_ends_when_the_other_end_is_gone():
    with served() as channel:
        channel.send(job("steps 100000"))
        receive_until(channel, JobEvent)
        channel.close()


# --- the worker process and its parent: no orphan however the parent dies ------------------

ROOT = Path(__file__).parents[3]
ORPHAN_LIMIT_S = 30.0  # for a busy machine; a worker that stays would do so for an hour
APP = """
    import json, os, sys, time

    def main(scripts):
        from ckv_core.records.run_request import RunRequest
        from ckv_core.worker.client import WorkerClient
        from ckv_core.worker.messages import Job, JobEvent
        from tests.ckv_core.worker.reply_log import Log

        def at_work(script):
            log, runner = Log(), "tests.ckv_core.worker.scripted_runner:ScriptedRunner"
            client = WorkerClient(log, runner=runner)
            client.start()
            client.submit(Job("a", RunRequest(context="one two", question=script)))
            log.wait(lambda r: isinstance(r, JobEvent) and "layer" in str(r.event))
            return client

        clients = [at_work(script) for script in scripts if script != "fork"]
        heir = os.fork() if "fork" in scripts else None
        if heir == 0:
            time.sleep(3600)
        print(json.dumps([[client.worker_pid for client in clients], heir]), flush=True)
        sys.stdin.read()
        for client in clients:
            client.close()

    if __name__ == "__main__":
        main(sys.argv[1:])
"""


@pytest.fixture
def app(request, tmp_path):
    """An app with a worker at each script, and their process ids; `fork` leaves a copy of it."""
    path = tmp_path / "some_app.py"
    path.write_text(textwrap.dedent(APP))
    with subprocess.Popen(
        [sys.executable, str(path), *request.param],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        workers, heir = json.loads(process.stdout.readline())
        assert all(map(psutil.pid_exists, workers))
        yield process, workers
        process.kill()
        if heir:
            os.kill(heir, signal.SIGKILL)


@pytest.mark.parametrize(
    ("app", "end"),
    [
        (("hang", "spin", "steps 100000"), signal.SIGKILL),
        (("hang",), signal.SIGTERM),
        (("hang", "fork"), signal.SIGKILL),  # its workers' pipes live on
    ],
    ids=["killed", "terminated", "killed with an heir"],
    indirect=["app"],
)
def test_workers_end_with_their_parent(app, end):
    process, workers = app
    process.send_signal(end)
    process.wait(ORPHAN_LIMIT_S)
    assert_gone(workers)


@pytest.mark.parametrize("app", [("hang",)], indirect=True)
def test_an_orderly_end_ends_the_worker(app):
    process, (worker,) = app
    process.stdin.close()
    assert process.wait(2 * ORPHAN_LIMIT_S) == 0
    assert not psutil.pid_exists(worker)
