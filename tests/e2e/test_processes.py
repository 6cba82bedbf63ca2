"""What happens when processes die, and what the app leaves behind."""

import os
import signal
import sys

import pytest
from playwright.sync_api import Page, expect

from app import main
from ckv_core.runtime import logs
from tests.e2e import steps
from tests.e2e.app_runner import STOP_LIMIT_S, App
from tests.ports import free_port
from tests.processes import assert_gone


def test_a_killed_worker_fails_its_run_and_the_next_run_works(page: Page, app: App):
    steps.run_endlessly(page)
    for pid in app.workers():
        os.kill(pid, signal.SIGKILL)
    steps.expect_state(page, "failed")
    expect(page.locator("#status")).to_contain_text("A new worker starts by itself")
    assert steps.generated(page, "Full cache").inner_text()
    page.goto(app.url)
    page.locator("#context-bar [data-ready]").wait_for()
    steps.fill(page)
    steps.run(page)
    steps.expect_state(page, "done")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_stopped_or_killed_app_leaves_no_process_behind(start_app, number, status):
    app = start_app()
    workers = app.workers()
    assert workers
    app.process.send_signal(number)
    assert app.process.wait(STOP_LIMIT_S) == status
    assert_gone(workers)
    assert "Traceback" not in app.log.read_text()


@pytest.mark.parametrize("taken", ["data", "port"])
def test_a_second_app_in_the_same_place_is_one_sentence(
    app: App, tmp_path, monkeypatch, capsys, taken
):
    port = app.url.rpartition(":")[2]
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.setenv("CKV_HOME", str(app.log.parent if taken == "data" else tmp_path))
    monkeypatch.setenv("CKV_PORT", str(free_port()) if taken == "data" else port)
    monkeypatch.setattr(sys, "argv", ["app.py"])
    assert main() == 1
    told = {
        "data": "Another CriticalKV Lab serves",
        "port": f"Port {port} on 127.0.0.1 cannot be used",
    }
    (line,) = capsys.readouterr().err.splitlines()
    assert told[taken] in line
