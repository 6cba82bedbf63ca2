"""The worker process and its parent: no orphan however the parent dies."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.processes import assert_gone

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
