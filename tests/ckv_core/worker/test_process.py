"""The worker process and its parent: no orphan however the parent dies."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ORPHAN_LIMIT_S = 30.0  # for a busy machine; a worker that stays would do so for an hour
APP = """
    import json, os, sys, time

    def main(script, forks):
        from ckv_core.request.compare_request import CompareRequest
        from ckv_core.worker.client import WorkerClient
        from ckv_core.worker.messages import Job, JobEvent

        def on_reply(reply):
            if isinstance(reply, JobEvent) and "layer" in str(reply.event):
                pids = {"pid": client.worker_pid}
                if forks:
                    pids["heir"] = os.fork()
                    if not pids["heir"]:
                        time.sleep(3600)
                print(json.dumps(pids), flush=True)

        runner = "tests.ckv_core.worker.scripted_runner:ScriptedRunner"
        client = WorkerClient(on_reply, runner=runner)
        client.start()
        client.submit(Job("a", CompareRequest(context="one two", question=script)))
        sys.stdin.read()
        client.close()

    if __name__ == "__main__":
        main(sys.argv[1], forks=len(sys.argv) > 2)
"""


@pytest.fixture
def app(request, tmp_path) -> Iterator[subprocess.Popen[str]]:
    """An app process whose worker plays the script given; `and forks` leaves a copy of it."""
    path = tmp_path / "some_app.py"
    path.write_text(textwrap.dedent(APP))
    with subprocess.Popen(
        [sys.executable, str(path), *request.param.split(" and ")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def told(app: subprocess.Popen[str]) -> dict[str, int]:
    assert app.stdout is not None
    pids: dict[str, int] = json.loads(app.stdout.readline())
    return pids


def ends_in_time(pid: int) -> bool:
    deadline = time.monotonic() + ORPHAN_LIMIT_S
    while time.monotonic() < deadline:
        if not _runs(pid):
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False


def _runs(pid: int) -> bool:
    """Whether it runs; a zombie that nobody has reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("app", "end"),
    [
        ("hang", signal.SIGKILL),
        ("spin", signal.SIGKILL),
        ("steps 100000", signal.SIGKILL),
        ("hang", signal.SIGTERM),
    ],
    indirect=["app"],
)
def test_the_worker_ends_with_its_parent(app, end):
    pid = told(app)["pid"]
    assert _runs(pid)
    app.send_signal(end)
    app.wait(ORPHAN_LIMIT_S)
    assert ends_in_time(pid)


@pytest.mark.parametrize("app", ["hang and forks"], indirect=True)
def test_a_worker_whose_parents_pipes_live_on_ends_too(app):
    pids = told(app)
    worker, heir = pids["pid"], pids["heir"]
    try:
        app.kill()
        app.wait(ORPHAN_LIMIT_S)
        assert ends_in_time(worker)
    finally:
        os.kill(heir, signal.SIGKILL)


@pytest.mark.parametrize("app", ["hang"], indirect=True)
def test_an_orderly_end_ends_the_worker(app):
    pid = told(app)["pid"]
    assert app.stdin is not None
    app.stdin.close()
    assert app.wait(2 * ORPHAN_LIMIT_S) == 0
    assert not _runs(pid)
